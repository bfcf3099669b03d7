"""LeRobot's layout of π0.5, from version 0.4 on, as in https://huggingface.co/lerobot/pi05_base."""

from collections.abc import Mapping
from typing import Any

from embodyflow.policies.embodied.flow_vla.paligemma_layout_flow_vla import PaliGemmaLayout
from embodyflow.policies.embodied.flow_vla.statistics_flow_vla import Quantiles
from embodyflow.policies.embodied.lerobot_processors import Step, step


class PI05Layout(PaliGemmaLayout):
    """Layout of π0.5."""

    kind, title, statistics = "pi05", "π0.5", Quantiles

    def preprocessing(
        self, described: Mapping[str, Any], tokenizer: Step, normalizer: Step, device: Step
    ) -> list[Step]:
        """Return steps that normalise the state before it is written into the prompt; see :class:`Layout`."""
        writing = step(
            "pi05_prepare_state_tokenizer_processor_step", max_state_dim=described["max_state_dim"], task_key="task"
        )
        return [normalizer, writing, tokenizer, device]


LAYOUT = PI05Layout()

"""LeRobot's layout of π0, from version 0.4 on, as in https://huggingface.co/lerobot/pi0_base."""

from embodyflow.policies.embodied.flow_vla.paligemma_layout_flow_vla import PaliGemmaLayout


class PI0Layout(PaliGemmaLayout):
    """Layout of π0."""

    kind, title = "pi0", "π0"


LAYOUT = PI0Layout()

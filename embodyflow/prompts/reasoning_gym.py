"""Problems that the package reasoning-gym generates and verifies (Stojanovski et al. 2025, arXiv:2505.24760)."""

from collections.abc import Mapping
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.prompts.arithmetic import MARKER
from embodyflow.prompts.prompt_config import ReasoningGymConfig
from embodyflow.prompts.prompts import Prompt, Split, consecutive_splits
from embodyflow.prompts.word_tokenizer import word_tokenizer
from embodyflow.seeding import derive_seed

_DRAWS_PER_PROBLEM = 20
_PHRASES = (
    "State the final answer to the following arithmetic problem: ",
    "Spell this word backward (example: sun -> nus): ",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    " Give only the GCD as your final answer.",
    f"{MARKER} ",
)
_CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}<eos>{% endfor %}"


class ReasoningGymPrompts:
    """Problems of several tasks, one task after the other, so that each share of them has all tasks.

    No question is in two splits. Validation takes the first distinct problems that a task draws, then demonstrations,
    then training; so more problems to train on leave the others as they are. The row of a prompt has what its verifier
    needs: reasoning-gym's entry in ``row["entry"]`` and the settings of the task in ``row["settings"]``. Its dataset is
    the name of the task.

    Args:
        config: Tasks with their settings, and sizes of the splits.

    Raises:
        ConfigError: reasoning-gym is not installed, has no such task or setting, or a task has too few problems.
    """

    def __init__(self, config: ReasoningGymConfig) -> None:
        self._config = config
        sizes = config.num_validation, config.num_demos, config.num_train
        drawn = {task: _draw(config, task, sum(sizes)) for task in config.tasks}
        self._entries: dict[Split, list[tuple[str, dict[str, Any]]]] = {
            split: [(task, entries[place]) for place in places for task, entries in drawn.items()]
            for split, places in consecutive_splits(*sizes).items()
        }

    def num_prompts(self, split: Split) -> int:
        """Return the number of problems in a split, of all tasks."""
        return len(self._entries[split])

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return the prompt of a problem."""
        task, entry = self._entries[split][index]
        question = f"{entry['question']}{self._config.suffix}"
        messages = [{"role": "user", "content": question}] if self._config.chat else None
        text = None if self._config.chat else question
        row = {"entry": entry, "settings": self._config.tasks[task]}
        return Prompt(index, text, messages, entry["answer"], task, row)

    def demonstration(self, split: Split, index: int) -> str:
        """Return the answer after a marker."""
        return f"{MARKER} {self._entries[split][index][1]['answer']}"

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Return the answer as the only turn."""
        return (self.demonstration(split, index),)

    def place(self, split: Split, index: int) -> str:
        """Return task and number of a problem, for messages."""
        return f"{self._entries[split][index][0]}, problem {index}"


def _draw(config: ReasoningGymConfig, task: str, number: int) -> list[dict[str, Any]]:
    """Return distinct problems of a task."""
    dataset = _dataset(config, task, number * _DRAWS_PER_PROBLEM)
    found: dict[str, dict[str, Any]] = {}
    for entry in dataset:
        found.setdefault(entry["question"], entry)
        if len(found) == number:
            return list(found.values())
    raise ConfigError(
        f"data.tasks.{task}: has {len(found)} different problems with these settings, and "
        f"data.num_train + data.num_validation + data.num_demos = {number}; lower these or widen the settings"
    )


def _dataset(config: ReasoningGymConfig, task: str, size: int) -> Any:
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ConfigError(
            f"data.name=reasoning_gym: {error}; make install EXTRAS=dev,reasoning, or pip install "
            "'embodyflow[reasoning]'"
        ) from error
    if task not in DATASETS:
        raise ConfigError(f"data.tasks: reasoning-gym has no task {task}; it has {', '.join(sorted(DATASETS))}")
    settings: Mapping[str, Any] = config.tasks[task]
    seed = derive_seed(config.split_seed, "reasoning_gym", task) % 2**31  # it adds the number of a problem
    try:
        return create_dataset(task, **{**settings, "seed": seed, "size": size})
    except (TypeError, ValueError, AssertionError) as error:
        line = str(error).strip().partition("\n")[0]
        raise ConfigError(f"data.tasks.{task}={dict(settings)}: {line}") from error


def build_tokenizer() -> Any:
    """Build the tokenizer of ``experiment=reasoning_gym``, a ``transformers.PreTrainedTokenizerFast``.

    Letters and signs are tokens, and so are the phrases of its tasks. The tokenizer puts ``<bos>`` before a text.
    """
    words = (*_PHRASES, "\n", *map(chr, range(32, 127)))
    return word_tokenizer(words, end="<eos>", chat_template=_CHAT_TEMPLATE, begins=True)

"""Numbered tasks without texts of their own, for environments that write the prompt."""

from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import TasksConfig
from embodyflow.prompts.prompts import Prompt, Split


class TaskPrompts:
    """Chats with one message of the user, the same for all tasks; a task is its number.

    Implements :class:`~embodyflow.prompts.prompts.PromptSource`. It has no demonstrations.

    Args:
        config: Numbers of tasks, and the message.
    """

    def __init__(self, config: TasksConfig) -> None:
        self._config = config

    def num_prompts(self, split: Split) -> int:
        """Return the number of tasks in a split."""
        return {"train": self._config.num_train, "validation": self._config.num_validation, "demo": 0}[split]

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return a task; its ground truth is its number."""
        messages = [{"role": "user", "content": self._config.text}]
        return Prompt(index, None, messages, str(index), "tasks", {"task": index})

    def demonstration(self, split: Split, index: int) -> str:
        """Raise :class:`ConfigError`: tasks have no demonstrations."""
        raise ConfigError("data.name=tasks: has no demonstrations; set warm_start=null")

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Raise :class:`ConfigError`: tasks have no demonstrations."""
        return (self.demonstration(split, index),)

    def place(self, split: Split, index: int) -> str:
        """Return the task, for messages."""
        return f"task {index} of split {split}"

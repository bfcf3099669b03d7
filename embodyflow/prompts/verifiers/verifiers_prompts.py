"""Tasks of an environment of verifiers as rows."""

from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import VerifiersTasksConfig
from embodyflow.prompts.prompts import Prompt, Split
from embodyflow.prompts.verifiers.environment_process import tasks_of


class VerifiersPrompts:
    """The first tasks of the taskset are those of validation, and the rest is to train on.

    So more tasks to train on leave those of validation as they are. The chat is the task's prompt after its system
    prompt, the ground truth is the field ``answer`` of its data, and ``row["task"]`` is all of the data.

    Args:
        config: Environment, and sizes of the splits.

    Raises:
        ConfigError: The environment cannot be loaded, gives no reward or has too few tasks.
    """

    def __init__(self, config: VerifiersTasksConfig) -> None:
        self._taskset, validation, train = config.environment.taskset, config.num_validation, config.num_train
        tasks = tasks_of(config.environment, None if train is None else validation + train)
        allowed = validation + (1 if train is None else train)
        if len(tasks) < allowed:
            raise ConfigError(
                f"data.num_validation={validation}, data.num_train={train}: taskset {self._taskset} has {len(tasks)} "
                "tasks; lower these"
            )
        self._tasks = tasks
        self._places: dict[Split, range] = {
            "validation": range(validation),
            "demo": range(0),
            "train": range(validation, len(tasks)),
        }

    def num_prompts(self, split: Split) -> int:
        """Return the number of tasks in a split."""
        return len(self._places[split])

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return the row of a task."""
        if not 0 <= index < self.num_prompts(split):
            raise IndexError(f"index={index}: allowed are 0 to {self.num_prompts(split) - 1}, the {split} tasks")
        number = self._places[split][index]
        task = self._tasks[number]
        messages = [dict(message) for message in task["messages"]]
        return Prompt(number, None, messages, task["answer"], self._taskset, {"task": task["data"]})

    def demonstration(self, split: Split, index: int) -> str:
        """Refuse: a taskset has no demonstrations.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("data=verifiers: has no demonstrations; set warm_start=null")

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Refuse as :meth:`demonstration` does."""
        return (self.demonstration(split, index),)

    def place(self, split: Split, index: int) -> str:
        """Return taskset and number of a task, for messages."""
        return f"{self._taskset}, task {self._places[split][index]}"

"""Configuration of an environment of the package verifiers."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.durations import Seconds


class VerifiersConfig(BaseModel):
    """An environment of the package verifiers, in a process of its own. A bare id stands for one with these defaults.

    Attributes:
        taskset: Id of the taskset: the name of a package that exports it.
        settings: Further settings of verifiers' ``EnvConfig``, such as ``{taskset: {split: train}}``. Without
            ``agent.harness`` and ``agent.runtime`` the model chats and calls the tools of the task, on this machine.
        python: Python that has verifiers and the taskset. ``python`` is the one that runs embodyflow.
        start_timeout: Seconds that the process may take to load the environment.
        timeout: Seconds that an episode may take between two turns of the model, from its start to the first and from
            the last to its reward. An episode that takes longer has failed.
        success_above: Reward above which an episode counts as a success.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    taskset: Annotated[str, Field(min_length=1)]
    settings: dict[str, Any] = {}
    python: Annotated[str, Field(min_length=1)] = "python"
    start_timeout: Seconds = 300.0
    timeout: Seconds = 60.0
    success_above: float = 0.5

    @model_validator(mode="after")
    def _check_settings(self) -> "VerifiersConfig":
        taskset = self.settings.get("taskset", {})
        if not isinstance(taskset, dict) or "id" in taskset:
            raise ValueError("settings.taskset: must be a mapping without id, which is the key taskset")
        return self


def from_id(value: Any) -> Any:
    """Return the section that a bare id stands for."""
    return {"taskset": value} if isinstance(value, str) else value

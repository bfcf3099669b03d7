"""A taskset of verifiers with a fault that its configuration names."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Faults"]


class Silent(vf.Task[vf.TaskData]):
    pass


class Config(vf.TasksetConfig):
    fault: str = ""


class Judged(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        raise KeyError("answer")


class Faults(vf.Taskset[Judged, Config]):
    def load(self) -> Iterator[vf.Task]:
        match self.config.fault:
            case "no tasks":
                return
            case "another type":
                yield Silent(vf.TaskData(prompt="1*1="), vf.TaskConfig())
            case "no prompt":
                yield Judged(vf.TaskData(), vf.TaskConfig())
            case "raises":
                raise FileNotFoundError("rows.json")
            case _:
                yield Judged(vf.TaskData(prompt="1*1=", system_prompt="2*2="), vf.TaskConfig())

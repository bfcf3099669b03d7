"""A taskset of verifiers whose tasks have no reward."""

import verifiers.v1 as vf

__all__ = ["Silence"]


class Silent(vf.Task[vf.TaskData]):
    pass


class Silence(vf.Taskset[Silent]):
    def load(self) -> list[Silent]:
        return [Silent(vf.TaskData(prompt="1*1="), self.config.task)]

"""A taskset of verifiers, as its authors would write it: products, with a calculator that all episodes share."""

import verifiers.v1 as vf

__all__ = ["Calculations"]


class Calculator(vf.Toolset[vf.SharedToolsetConfig]):
    @vf.tool
    async def calculate(self, expression: str) -> str:
        """Multiply two numbers."""
        left, right = expression.split("*")
        return str(int(left) * int(right))


class Data(vf.TaskData):
    answer: str = ""


class Calculation(vf.Task[Data]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.rpartition("## ")[2] == self.data.answer)

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class Config(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class Calculations(vf.Taskset[Calculation, Config]):
    def load(self) -> list[Calculation]:
        return [Calculation(Data(prompt="12*34=", answer="408"), self.config.task)]

    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Calculator(config.tools)]


if __name__ == "__main__":
    Calculator.run()

"""A taskset of verifiers, as its authors would write it: products, with two rewards and a metric."""

import verifiers.v1 as vf

__all__ = ["Products"]


class Data(vf.TaskData):
    answer: str = ""


class Product(vf.Task[Data]):
    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.25)
    async def digits(self, trace: vf.Trace) -> float:
        return sum(letter.isdigit() for letter in trace.last_reply) / 20

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.TasksetConfig):
    number: int = 12
    left: int = 12


class Products(vf.Taskset[Product, Config]):
    def load(self) -> list[Product]:
        left = self.config.left
        return [
            Product(Data(prompt=f"{left}*{number}=", answer=str(left * number)), self.config.task)
            for number in range(34, 34 + self.config.number)
        ]

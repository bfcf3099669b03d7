"""The model of a program that restarts: it writes what it wrote before."""

from dataclasses import dataclass, field

from embodyflow.agents.chat.call_journal import ChangedCallError
from embodyflow.agents.chat.conversation import Model
from embodyflow.agents.chat.transcript import Tokens
from embodyflow.generation.interface import Completion


@dataclass
class RepeatedModel:
    """A model that gives its turns again. Implements :class:`~embodyflow.agents.chat.conversation.Model`.

    Turns that were sampled before take no step of the engine, so other episodes do not notice.

    Attributes:
        model: Model that samples further turns.
        turns: Tokens that it continued, each with the turn, in order.
    """

    model: Model
    turns: list[tuple[Tokens, Completion]] = field(default_factory=list)
    _num_given: int = 0

    def begin_again(self) -> None:
        """Give the turns again, from the first one."""
        self._num_given = 0

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Return the next turn; sample it if it was not sampled before.

        Raises:
            ChangedCallError: The turn continued other tokens.
        """
        number = self._num_given
        if number == len(self.turns):
            self.turns.append((prompt_ids, await self.model.generate(prompt_ids, max_tokens)))
        before, turn = self.turns[number]
        if before != prompt_ids:
            raise ChangedCallError(f"turn {number} differs from that of the failed attempt")
        self._num_given = number + 1
        return turn

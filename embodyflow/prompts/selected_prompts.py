"""Some of the prompts of another source."""

from collections.abc import Mapping, Sequence

from embodyflow.prompts.prompts import Prompt, PromptSource, Split


class SelectedPrompts:
    """The prompts of another source without some of its rows; a prompt keeps its id.

    Args:
        source: Other source.
        kept: Indices of the prompts to keep, by split; a split that is absent keeps all.
    """

    def __init__(self, source: PromptSource, kept: Mapping[Split, Sequence[int]]) -> None:
        self._source, self._kept = source, kept

    def num_prompts(self, split: Split) -> int:
        """Return the number of prompts that are left in a split."""
        return len(self._kept[split]) if split in self._kept else self._source.num_prompts(split)

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return a prompt."""
        return self._source.prompt(split, self._index(split, index))

    def demonstration(self, split: Split, index: int) -> str:
        """Return the response to imitate."""
        return self._source.demonstration(split, self._index(split, index))

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Return the turns of an agent to imitate."""
        return self._source.demonstration_turns(split, self._index(split, index))

    def place(self, split: Split, index: int) -> str:
        """Return the place of a prompt's row, for messages."""
        return self._source.place(split, self._index(split, index))

    def _index(self, split: Split, index: int) -> int:
        if not 0 <= index < self.num_prompts(split):
            raise IndexError(f"index={index}: allowed are 0 to {self.num_prompts(split) - 1}, the {split} prompts")
        return self._kept[split][index] if split in self._kept else index

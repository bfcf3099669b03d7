"""The tokens of an episode, exactly as they were sampled and given; text is only a view of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from embodyflow.generation.interface import Completion

Tokens = tuple[int, ...]


class Origin(IntEnum):
    """Writer of a token. Only the model's own tokens are trained on."""

    TEMPLATE = 0
    MODEL = 1
    TOOL = 2
    USER = 3


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one origin in one context.

    Attributes:
        tokens: T token ids, at least one.
        origin: Who wrote them.
        log_probs: Log-probs of the model's tokens, T floats; empty for other origins.
        policy_version: Version of the weights that sampled them; -1 for other origins.
        context: Number of the context that they extend.
        versions: Version that sampled each of them; empty if ``policy_version`` sampled all.
    """

    tokens: Tokens
    origin: Origin
    log_probs: tuple[float, ...] = ()
    policy_version: int = -1
    context: int = 0
    versions: tuple[int, ...] = ()


@dataclass
class Transcript:
    """An episode in the order in which its tokens came, in one or several contexts.

    A context is a sequence that only grows at its end. The model sees one context at a time, and so does the trainer:
    positions begin at 0 in each, and no token attends to another context. Context 0 continues the prompt. A further one
    begins with tokens of its own, where a chat template or a workflow changes what the model has read so far, or where
    another agent takes part.

    Attributes:
        prompt: Tokens before the first segment of context 0; none until the first context begins.
        segments: Segments after the prompt, in the order in which they came.
        agents: Name of the agent whose context it is, one for each context; empty for an agent without a name.
    """

    prompt: Tokens = ()
    segments: list[Segment] = field(default_factory=list)
    agents: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.prompt:
            self.agents.append("")

    @property
    def num_contexts(self) -> int:
        """Number of contexts so far."""
        return len(self.agents)

    @property
    def writers(self) -> set[str]:
        """Names of the agents that have written at least one turn."""
        return {self.agents[segment.context] for segment in self.segments if segment.origin == Origin.MODEL}

    @property
    def num_new_tokens(self) -> int:
        """Number of tokens after the prompt, of all contexts."""
        return sum(len(segment.tokens) for segment in self.segments)

    @property
    def num_turns(self) -> int:
        """Number of the model's turns, of all contexts."""
        return sum(segment.origin == Origin.MODEL for segment in self.segments)

    def tokens_of(self, context: int = 0) -> Tokens:
        """Return all tokens of a context; the model's next turn in it continues them."""
        tokens = [*self.prompt] if context == 0 else []
        for segment in self.segments:
            if segment.context == context:
                tokens += segment.tokens
        return tuple(tokens)

    def begin(self, tokens: Tokens, agent: str = "") -> int:
        """Begin a context of an agent and return its number; the tokens of the first one are the episode's prompt.

        Raises:
            ValueError: There are no tokens.
        """
        if not tokens:
            raise ValueError("a context must begin with at least one token")
        context = self.num_contexts
        self.agents.append(agent)
        if context == 0:
            self.prompt = tokens
        else:
            self.append_given(tokens, Origin.TEMPLATE, context)
        return context

    def append_sampled(self, completion: Completion, context: int = 0) -> None:
        """Append a turn of the model to a context."""
        segment = Segment(
            completion.token_ids,
            Origin.MODEL,
            completion.log_probs,
            completion.policy_version,
            self._checked(context),
            completion.versions,
        )
        self.segments.append(segment)

    def append_given(self, tokens: Sequence[int], origin: Origin, context: int = 0) -> None:
        """Append tokens that the model did not write to a context; none append nothing."""
        if tokens:
            self.segments.append(Segment(tuple(tokens), origin, context=self._checked(context)))

    def response(self) -> "Response":
        """Return the tokens after the prompt; those after the model's last token of their context are left out.

        Raises:
            ValueError: The model has written nothing.
        """
        segments = self._with_successors()
        if not segments:
            raise ValueError("the model has written nothing; an episode needs at least one turn of the model")
        number_of = {context: number for number, context in enumerate(sorted({0, *(s.context for s in segments)}))}
        tokens: list[int] = []
        origins: list[int] = []
        contexts: list[int] = []
        turns: list[int] = []
        agents: list[str] = []
        log_probs: list[float] = []
        versions: list[int] = []
        num_turns = 0
        for segment in segments:
            sampled, length = segment.origin == Origin.MODEL, len(segment.tokens)
            num_turns += sampled
            tokens += segment.tokens
            log_probs += segment.log_probs or (0.0,) * length
            origins += [segment.origin] * length
            contexts += [number_of[segment.context]] * length
            turns += [num_turns if sampled else 0] * length
            agents += [self.agents[segment.context] if sampled else ""] * length
            versions += segment.versions or (segment.policy_version if sampled else 0,) * length
        version = min(segment.policy_version for segment in segments if segment.origin == Origin.MODEL)
        return Response(
            tuple(tokens),
            tuple(origins),
            tuple(contexts),
            tuple(turns),
            tuple(agents),
            tuple(log_probs),
            version,
            tuple(versions) if any(segment.versions for segment in segments) else (),
        )

    def _with_successors(self) -> list[Segment]:
        """Return the model's segments and those that one of them follows in its context."""
        last = {segment.context: at for at, segment in enumerate(self.segments) if segment.origin == Origin.MODEL}
        return [segment for at, segment in enumerate(self.segments) if at <= last.get(segment.context, -1)]

    def _checked(self, context: int) -> int:
        if not 0 <= context < self.num_contexts:
            raise ValueError(f"context={context}: the episode has {self.num_contexts} contexts")
        return context


@dataclass(frozen=True)
class Response:
    """Everything after the prompt, as one row: R tokens.

    Attributes:
        tokens: Token ids, in the order in which they came. The last one of each context is the model's.
        origins: :class:`Origin` of each token.
        contexts: Context of each token. Contexts without a turn of the model do not count.
        turns: Number of the model's turn that each token belongs to, from 1; 0 for tokens of others.
        agents: Name of the agent that wrote each token; empty for tokens of others and of an agent without a name.
        log_probs: Log-prob of each token of the model, 0 for others.
        policy_version: Oldest version of the weights that sampled one of them.
        versions: Version that sampled each token of the model, 0 for others; empty if each turn has a single one.
    """

    tokens: Tokens
    origins: tuple[int, ...]
    contexts: tuple[int, ...]
    turns: tuple[int, ...]
    agents: tuple[str, ...]
    log_probs: tuple[float, ...]
    policy_version: int
    versions: tuple[int, ...] = ()

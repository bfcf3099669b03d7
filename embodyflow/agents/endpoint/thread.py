"""A conversation of the model with a program, which sends the whole chat again with each request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from embodyflow.agents.chat.chat_format import ChatFormat, Message
from embodyflow.agents.endpoint.api_error import ApiError, RequestError
from embodyflow.agents.endpoint.messages import continuation
from embodyflow.agents.endpoint.stop_strings import StoppingModel
from embodyflow.agents.endpoint.turns import Call, Turn, TurnRequest
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tools.tool_calls import ToolCall, UnreadableCall, build_parser
from embodyflow.agents.workflow import ChatEngine
from embodyflow.prompts.prompts import Prompt

CALLS_BEGIN = {"hermes": "<tool_call>", "llama3": "<|python_tag|>"}
"""Text that begins a turn's calls, by the value of ``rollout.agent.parser``; the text before it is beside the calls."""


class Thread:
    """A conversation, and the messages by which its program knows it.

    The tokens of a turn stay those that were sampled. A request names a turn by the message that the program got, and
    the template encodes only the messages after it. The first conversation of an episode continues its prompt; each
    further one is a context of its own.

    Args:
        engine: Model of the episode.
        row: Row of the data.
        context: Context of the episode.
        request: Request for the first turn, whose messages are the prompt.

    Raises:
        RequestError: The chat template ignores the tools.
        PromptTooLongError: The episode's first messages have more tokens than ``rollout.max_prompt_tokens``.
    """

    def __init__(self, engine: ChatEngine, row: Prompt, context: EpisodeContext, request: TurnRequest) -> None:
        self._context, self._tokenizer = context, engine.tokenizer
        self._parse = build_parser(context.config.parser, engine.tokenizer, [dict(tool) for tool in request.tools])
        self._model = StoppingModel(engine.model, engine.tokenizer)
        prompt = replace(row, text=None, messages=[dict(message) for message in request.messages])
        tools = [dict(tool) for tool in request.tools] if context.config.describe_tools else []
        _require_tools_in_template(engine.tokenizer, prompt, tools)
        self._conversation = replace(engine, model=self._model).chat(prompt, tools, context)
        self._tools: tuple[Mapping[str, Any], ...] = request.tools
        self._known: list[Message] = list(request.messages)
        self._is_new = True

    def is_continued_by(self, request: TurnRequest) -> bool:
        """Return True if a request continues the conversation."""
        return request.tools == self._tools and continuation(self._known, request.messages) is not None

    @property
    def num_messages(self) -> int:
        """Number of messages so far."""
        return len(self._known)

    async def turn(self, request: TurnRequest, name: str) -> Turn:
        """Sample the next turn.

        Args:
            request: Request that continues the conversation.
            name: Name of the turn.

        Raises:
            ApiError: The messages and a turn do not fit into the episode, which ends here.
        """
        new = () if self._is_new else request.messages[len(self._known) :]
        fits = self._conversation.give_messages(new) if new else self._conversation.room >= 1
        if not fits:
            raise ApiError(
                "the episode has no room for another turn: rollout.max_response_tokens limits its tokens",
                param="messages",
                code="context_length_exceeded",
            )
        self._model.stop = request.stop
        limits = (request.max_tokens, self._context.config.max_turn_tokens)
        await self._conversation.reply(min((limit for limit in limits if limit is not None), default=None))
        self._conversation.finished = self._model.finish_reason == "stop"
        turn = self._read(request, name)
        self._known, self._is_new = [*request.messages, turn.message()], False
        return turn

    def episode(self, cut: bool, reward: float | None, success: bool | None) -> Episode:
        """Return the episode; ``cut`` says that a limit ended it."""
        self._conversation.finished = self._conversation.finished and not cut
        return self._conversation.episode(reward, success)

    def _read(self, request: TurnRequest, name: str) -> Turn:
        """Return the turn that the model has written."""
        completion, text, reason = self._model.completion, self._model.text, self._model.finish_reason
        assert completion is not None
        calls = self._calls(text) if request.reads_calls else ()
        if calls:
            marker = CALLS_BEGIN.get(self._context.config.parser)
            text = text.partition(marker)[0] if marker is not None and marker in text else ""
        for special in self._tokenizer.all_special_tokens:
            text = text.replace(special, "")
        decode = self._tokenizer.decode
        ended = completion.finish_reason == "stop"
        shown = completion.token_ids[: len(completion.token_ids) - ended]
        return Turn(
            name=name,
            text=text,
            calls=calls,
            finish_reason="tool_calls" if calls and reason == "stop" else reason,
            tokens=tuple(
                (decode([token]), log_prob) for token, log_prob in zip(shown, completion.log_probs, strict=False)
            ),
            num_prompt_tokens=self._model.num_prompt_tokens,
            num_sampled_tokens=len(completion.token_ids),
        )

    def _calls(self, text: str) -> tuple[Call, ...]:
        """Return the calls in a turn; none if one of them cannot be read, so that the program sees all of the text."""
        found = self._parse(text, self._conversation.text_before)
        for call in found:
            if isinstance(call, UnreadableCall):
                self._context.mistake(call.reason)
            else:
                self._context.counts.calls += 1
        readable = [call for call in found if isinstance(call, ToolCall)]
        if len(readable) < len(found):
            return ()
        turn = self._context.counts.turns  # templates of Mistral take ids of nine letters and digits
        return tuple(Call(f"c{turn:04}{number:04}", call.name, call.arguments) for number, call in enumerate(readable))


def _require_tools_in_template(tokenizer: Any, prompt: Prompt, tools: Sequence[Mapping[str, Any]]) -> None:
    if tools and ChatFormat(tokenizer, tools, 0).text(prompt) == ChatFormat(tokenizer, (), 0).text(prompt):
        raise RequestError(
            "the program gives tools, and the tokenizer's chat template does not mention them; use a template that "
            "does, or describe the tools in the prompt and set rollout.agent.describe_tools=false"
        )

"""The memory of chats: equal chats are rendered and encoded once, different ones never share a result."""

from dataclasses import replace

import chat_tokenizers
import pytest

from embodyflow.agents.chat.chat_format import ChatFormat
from embodyflow.agents.chat.chat_memory import ChatMemory
from embodyflow.prompts.prompts import Prompt, PromptTooLongError

PROMPT = Prompt(0, None, [{"role": "user", "content": "add 1 and 2"}], "", "test")
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}


class Counted:
    """A tokenizer that counts how often it is used."""

    def __init__(self, tokenizer):
        self._tokenizer, self.uses = tokenizer, 0

    def apply_chat_template(self, *arguments, **options):
        self.uses += 1
        return self._tokenizer.apply_chat_template(*arguments, **options)

    def __call__(self, *arguments, **options):
        self.uses += 1
        return self._tokenizer(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


def chat(format: ChatFormat, prompt: Prompt, answer: str):
    """Return all that a conversation of one turn and one answer asks of a format."""
    messages = [{"role": "assistant", "content": "calling"}, {"role": "tool", "content": answer}]
    given = format.go_on(prompt, messages, format.text(prompt), "calling", format.encode("calling"))
    return format.begin(prompt), given, format.decode(given.tokens)


def test_siblings_share_what_the_tokenizer_computed():
    tokenizer, memory = Counted(chat_tokenizers.thinking(keeps=True)), ChatMemory()

    first = chat(ChatFormat(tokenizer, [TOOL], 100, memory), PROMPT, "3")
    uses = tokenizer.uses
    second = chat(ChatFormat(tokenizer, [TOOL], 100, memory), replace(PROMPT, messages=[dict(PROMPT.messages[0])]), "3")

    assert uses > 0 and tokenizer.uses == uses and first == second


@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
@pytest.mark.parametrize("content", ["add 1 and 2", "add 1 and 3"])
@pytest.mark.parametrize("answer", ["3", "4"])
def test_a_shared_memory_changes_no_result(tools, options, content, answer):
    tokenizer = chat_tokenizers.thinking(keeps=True)
    chat(ChatFormat(tokenizer, [], 100, MEMORY), PROMPT, "3")
    prompt = replace(PROMPT, messages=[{"role": "user", "content": content}], template_kwargs=options)

    assert chat(ChatFormat(tokenizer, tools, 100, MEMORY), prompt, answer) == chat(
        ChatFormat(tokenizer, tools, 100), prompt, answer
    )


MEMORY = ChatMemory()


def test_a_prompt_that_is_too_long_is_refused_each_time():
    tokenizer, memory = chat_tokenizers.thinking(keeps=True), ChatMemory()
    ChatFormat(tokenizer, [], 100, memory).begin(PROMPT)

    for number in (1, 2):
        with pytest.raises(PromptTooLongError, match=f"prompt {number} of test"):
            ChatFormat(tokenizer, [], 3, memory).begin(replace(PROMPT, prompt_id=number))


def test_the_oldest_results_make_room():
    memory, made = ChatMemory(room=10), []

    def recall(text):
        return memory.recall(lambda: made.append(text) or text, text)

    for text in ("four", "more", "four", "another", "four"):
        assert recall(text) == text

    assert made == ["four", "more", "another", "four"]
    assert recall("longer than all the room") and made[-1] == "longer than all the room"


def test_what_cannot_be_pickled_is_computed_each_time():
    memory, made = ChatMemory(), []
    for _ in range(2):
        memory.recall(lambda: made.append(1) or "text", lambda: None)

    assert made == [1, 1]

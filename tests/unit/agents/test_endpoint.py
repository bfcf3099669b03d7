"""The server that programs reach the model by: its messages have the published shapes, and turns stay as sampled."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from episode_clients import CALL, QUESTION, TOOLS, KnownModel, client_of, context_of, decode, encode, session_of

from embodyflow.agents.chat.transcript import Origin, Tokens
from embodyflow.agents.endpoint.api_error import RequestError
from embodyflow.agents.endpoint.server import EpisodeServer
from embodyflow.agents.endpoint.session import Session
from embodyflow.generation.interface import Completion
from embodyflow.prompts.calculator import build_tokenizer

ANSWER = {"role": "tool", "tool_call_id": "c00010000", "content": "408"}


async def post(client: httpx.AsyncClient, path: str = "/chat/completions", **body: Any) -> httpx.Response:
    return await client.post(path, json={"model": "gpt-any", **body})


def talk(model: KnownModel, *bodies: dict[str, Any], path: str = "/chat/completions", **options: Any):
    """Return the answers to requests, and the session."""
    kept: list[Session] = []

    async def run() -> list[httpx.Response]:
        session = session_of(model, **options)
        kept.append(session)
        async with client_of(session) as client:
            return [await post(client, path, **body) for body in bodies]

    return asyncio.run(run()), kept[0]


def events(response: httpx.Response) -> list[str]:
    assert response.headers["content-type"].startswith("text/event-stream")
    return [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]


def test_a_completion_has_the_published_fields() -> None:
    [response], _ = talk(KnownModel("## 408"), {"messages": [QUESTION], "logprobs": True})
    body = response.json()

    assert response.status_code == 200 and body["object"] == "chat.completion" and body["model"] == "gpt-any"
    assert body["id"] == "chatcmpl-5-0-0" and isinstance(body["created"], int)
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "## 408", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["index"] == 0
    prompt, sampled = encode("<bos><user>12*34=<end><assistant>"), (*encode("## 408"), 0)
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(sampled),
        "total_tokens": len(prompt) + len(sampled),
    }
    content = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == "## 408"
    assert [each["logprob"] for each in content] == [-0.5 - number for number in range(len(sampled) - 1)]
    assert content[0]["bytes"] == list(b"## ") and content[0]["top_logprobs"] == []


def test_a_call_is_read_and_its_answer_continues_the_sampled_tokens() -> None:
    model = KnownModel(f"12{CALL}", "## 408")

    async def run():
        session = session_of(model)
        async with client_of(session) as client:
            first = (await post(client, messages=[QUESTION], tools=TOOLS)).json()["choices"][0]
            [call] = first["message"]["tool_calls"]
            function = {**call["function"], "arguments": '{ "expression" : "12*34" }'}
            turn = {  # as clients may send it back
                **{**first["message"], "annotations": [], "function_call": None},
                **{"content": [{"type": "text", "text": "12"}], "tool_calls": [{**call, "function": function}]},
            }
            messages = [QUESTION, turn, ANSWER, {"role": "user", "content": "="}]
            second = (await post(client, messages=messages, tools=TOOLS)).json()["choices"][0]
        return first, second, session.episode(None, None)

    first, second, episode = asyncio.run(run())

    [call] = first["message"]["tool_calls"]
    assert call == {
        "id": "c00010000",
        "type": "function",
        "function": {"name": "calculate", "arguments": '{"expression": "12*34"}'},
    }
    assert first["message"]["content"] == "12" and first["finish_reason"] == "tool_calls"
    assert second["message"]["content"] == "## 408" and second["finish_reason"] == "stop"
    assert decode(model.prompts[0]) == "<bos>calculate<user>12*34=<end><assistant>"
    assert decode(model.prompts[1]) == (
        f"<bos>calculate<user>12*34=<end><assistant>12{CALL}<end><tool>408<end><user>=<end><assistant>"
    )
    segments = episode.transcript.segments
    assert [segment.origin for segment in segments] == [Origin.MODEL, Origin.USER, Origin.MODEL]
    assert decode(segments[0].tokens) == f"12{CALL}<end>" and episode.finished
    assert segments[0].log_probs[:2] == (-0.5, -1.5) and segments[0].policy_version == 3


def test_a_stream_has_the_published_chunks() -> None:
    [response], _ = talk(
        KnownModel(f"12{CALL}"),
        {"messages": [QUESTION], "tools": TOOLS, "stream": True, "stream_options": {"include_usage": True}},
    )
    *lines, done = events(response)
    chunks = [json.loads(line) for line in lines]

    assert done == "[DONE]" and {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None} and deltas[1] == {"content": "12"}
    [call] = deltas[2]["tool_calls"]
    assert call["index"] == 0 and call["function"]["name"] == "calculate" and call["id"] == "c00010000"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None, None, None, "tool_calls"] and deltas[3] == {}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_a_call_that_cannot_be_read_is_text_and_a_mistake() -> None:
    context, broken = context_of(), '<tool_call>{"name": "12'
    [response], _ = talk(KnownModel(broken), {"messages": [QUESTION], "tools": TOOLS}, context=context)
    message = response.json()["choices"][0]["message"]

    assert message["content"] == broken and "tool_calls" not in message
    assert (context.counts.calls, context.counts.mistakes) == (1, 1)


def test_without_a_choice_of_tools_the_turn_is_text() -> None:
    [response], _ = talk(KnownModel(CALL), {"messages": [QUESTION], "tools": TOOLS, "tool_choice": "none"})
    choice = response.json()["choices"][0]
    assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"


def test_a_stop_string_ends_the_turn_and_the_tokens_after_it_do_not_count() -> None:
    [response], session = talk(KnownModel("12*34=408"), {"messages": [QUESTION], "stop": ["=", "8"]})
    choice, episode = response.json()["choices"][0], session.episode(None, None)

    assert choice["message"]["content"] == "12*34" and choice["finish_reason"] == "stop"
    assert response.json()["usage"]["completion_tokens"] == len(encode("12*34="))
    assert [decode(segment.tokens) for segment in episode.transcript.segments] == ["12*34="] and episode.finished


def test_the_versions_of_a_turn_end_with_its_stop_string() -> None:
    """Otherwise those of the next turn's tokens are in the places of others."""

    class SeveralVersions(KnownModel):
        async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
            completion = await super().generate(prompt_ids, max_tokens)
            return replace(completion, versions=tuple(3 + number // 4 for number in range(len(completion.token_ids))))

    said = {"role": "assistant", "content": "12*34"}
    bodies = {"messages": [QUESTION], "stop": "="}, {"messages": [QUESTION, said, ANSWER]}
    _, session = talk(SeveralVersions("12*34=408", "## 408"), *bodies)
    response = session.episode(None, None).transcript.response()
    assert len(response.versions) == len(response.tokens)
    of_turns = list(zip(response.turns, response.versions, strict=True))
    assert [version for turn, version in of_turns if turn == 1] == [3, 3, 3, 3, 4, 4]
    assert [version for turn, version in of_turns if turn == 2][:5] == [3, 3, 3, 3, 4]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_tokens_cuts_the_turn(name: str) -> None:
    [response], session = talk(KnownModel("12*34=408"), {"messages": [QUESTION], name: 3})
    choice = response.json()["choices"][0]
    assert choice["message"]["content"] == "12*" and choice["finish_reason"] == "length"
    assert not session.episode(None, None).finished


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": 0.5}, "temperature=0.5: must be 1.0, or be left out; rollout.temperature sets"),
        ({"n": 2}, "n=2: must be 1, or be left out"),
        ({"top_p": 0.9}, "top_p=0.9: must be 1, or be left out"),
        ({"presence_penalty": 1.0}, "presence_penalty=1.0: must be 0, or be left out"),
        ({"response_format": {"type": "json_object"}}, "response_format="),
        ({"functions": []}, "functions=[]: leave it out"),
        ({"top_k": 5}, "top_k: this server has no such parameter; leave it out"),
        ({"max_tokens": 0}, "max_tokens: input should be greater than or equal to 1"),
        ({"messages": []}, "messages: list should have at least 1 item"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages.0.role='robot': must be one of system, dev"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content: must be text"),
        ({"tools": [{"type": "web_search"}]}, "tools.0: must be a function with a name"),
        ({"tool_choice": "always"}, "tool_choice=always: must be auto, none, required or a function"),
        ({"stop": ""}, "stop: must be text of at least one character"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_one_line(parameters: dict[str, Any], message: str) -> None:
    [response], session = talk(KnownModel(), {"messages": [QUESTION], **parameters})
    error = response.json()["error"]

    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["message"].startswith(message) and "\n" not in error["message"]
    assert error["param"] in {*parameters, "messages.0"} and session.refusal == error["message"]
    assert not session.failed.done()


def test_the_temperature_of_the_run_is_accepted() -> None:
    body = {"messages": [QUESTION], "temperature": 1, "seed": 3, "n": 1, "user": "me", "store": False}
    [response], _ = talk(KnownModel("1"), body, temperature=1.0)
    assert response.status_code == 200


def test_a_key_is_that_of_an_open_episode() -> None:
    async def run() -> list[int]:
        server, one, other = EpisodeServer(), session_of(KnownModel("1")), session_of(KnownModel("2"))
        async with client_of(one, server) as first:
            codes = [(await post(first, messages=[QUESTION])).json()["choices"][0]["message"]["content"]]
            for key in ("Bearer nonsense", "", f"Basic {first.headers['Authorization'][7:]}"):
                answer = await first.get("/models", headers={"Authorization": key})
                codes.append((answer.status_code, answer.json()["error"]["code"]))
            async with client_of(other, server) as second:
                assert second.base_url == first.base_url
                codes.append((await post(second, messages=[QUESTION])).json()["choices"][0]["message"]["content"])
            codes.append((await first.get("/models", headers=second.headers)).status_code)
            [model] = (await first.get("/models")).json()["data"]
            codes.append(model["id"])
            missing = await first.get("/embeddings")
            return [*codes, missing.status_code, "error" in missing.json()]

    refused = (401, "invalid_api_key")
    assert asyncio.run(run()) == ["1", refused, refused, refused, "2", 401, "policy", 404, True]


def test_the_server_listens_on_the_loopback_interface_while_an_episode_is_open() -> None:
    async def run() -> None:
        async with client_of(session_of(KnownModel())) as client:
            url = str(client.base_url)
            assert url.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(trust_env=False) as other:
            with pytest.raises(httpx.ConnectError):
                await other.get(url)

    asyncio.run(run())


ONE, TWO = {"role": "assistant", "content": "1"}, {"role": "assistant", "content": "2"}


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([QUESTION], "<user>12*34=<end>"),
        ([QUESTION, ONE], "<user>12*34=<end><assistant>1<end>"),
        ([QUESTION, TWO, ANSWER], "<user>12*34=<end><assistant>2<end><tool>408<end>"),
        ([{**QUESTION, "content": "3"}, ONE, ANSWER], "<user>3<end><assistant>1<end><tool>408<end>"),
        ([QUESTION, ONE, ANSWER, TWO], "<user>12*34=<end><assistant>1<end><tool>408<end><assistant>2<end>"),
    ],
)
def test_a_program_that_changes_its_chat_begins_a_context_of_the_episode(messages: list[Any], prompt: str) -> None:
    """What it says that the model wrote is given, not trained on, unless the model wrote it in this conversation."""
    model = KnownModel("1", "0")
    answers, session = talk(model, {"messages": [QUESTION]}, {"messages": messages})

    assert [answer.status_code for answer in answers] == [200, 200] and not session.failed.done()
    assert decode(model.prompts[1]) == f"<bos>{prompt}<assistant>"
    transcript = session.episode(None, None).transcript
    written = [(decode(each.tokens), each.context) for each in transcript.segments if each.origin == Origin.MODEL]
    assert (
        written == [("1<end>", 0), ("0<end>", 1)]
        and transcript.tokens_of(1)[: len(model.prompts[1])] == (model.prompts[1])
    )


def test_conversations_go_on_beside_each_other() -> None:
    """Two agents of a program take turns; each continues its own sampled tokens."""
    other = {"role": "user", "content": "5="}
    model = KnownModel("1", "2", "3", "4")
    bodies = [QUESTION], [other], [QUESTION, ONE, ANSWER], [other, TWO, ANSWER]
    answers, session = talk(model, *({"messages": messages} for messages in bodies))

    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["1", "2", "3", "4"]
    assert decode(model.prompts[3]) == "<bos><user>5=<end><assistant>2<end><tool>408<end><assistant>"
    transcript = session.episode(None, None).transcript
    assert transcript.num_contexts == 2 and transcript.num_turns == 4


def test_tools_that_change_begin_a_context() -> None:
    model = KnownModel("1", "2")
    bodies = {"messages": [QUESTION]}, {"messages": [QUESTION, ONE, ANSWER], "tools": TOOLS}
    talk(model, *bodies)
    assert decode(model.prompts[1]).startswith("<bos>calculate<user>12*34=<end><assistant>1<end><tool>")


def test_a_turn_after_a_stop_string_continues_the_sampled_tokens() -> None:
    model = KnownModel("12*34=408", "2")
    bodies = {"messages": [QUESTION], "stop": "="}, {"messages": [QUESTION, {**ONE, "content": "12*34"}, ANSWER]}
    talk(model, *bodies)
    assert decode(model.prompts[1]) == "<bos><user>12*34=<end><assistant>12*34=<end><tool>408<end><assistant>"


def test_tools_that_the_chat_template_ignores_fail_the_episode() -> None:
    def without_tools() -> tuple[KnownModel, dict[str, Any]]:
        tokenizer = build_tokenizer()
        tokenizer.chat_template = tokenizer.chat_template.replace("if tools", "if false")
        return KnownModel("1", tokenizer=tokenizer), {"messages": [QUESTION], "tools": TOOLS}

    model, body = without_tools()
    [response], session = talk(model, body)
    assert response.status_code == 400 and isinstance(session.failed.result(), RequestError)
    assert "rollout.agent.describe_tools=false" in str(session.failed.result())

    model, body = without_tools()
    [response], _ = talk(model, body, context=context_of(describe_tools=False))
    assert response.status_code == 200


def test_a_refusal_that_a_program_survives_is_forgotten() -> None:
    answers, session = talk(KnownModel("1"), {"messages": [QUESTION], "n": 2}, {"messages": [QUESTION]})
    assert [answer.status_code for answer in answers] == [400, 200] and session.refusal is None


def test_two_turns_at_a_time_are_refused() -> None:
    async def run() -> Session:
        model, session = KnownModel("1", "2"), None
        model.wait = lambda: asyncio.sleep(0.5)
        session = session_of(model)
        async with client_of(session) as client:
            codes = await asyncio.gather(*(post(client, messages=[QUESTION], user=name) for name in "ab"))
        assert sorted(code.status_code for code in codes) == [200, 400]
        return session

    assert "two turns at a time" in str(asyncio.run(run()).failed.result())


def test_a_request_that_a_client_repeats_gets_the_same_turn() -> None:
    async def run() -> list[str]:
        model, may_write = KnownModel("1", "2"), asyncio.Event()
        model.wait = may_write.wait
        async with client_of(session_of(model)) as client:
            impatient = httpx.Timeout(60, read=0.5)
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/chat/completions", json={"messages": [QUESTION]}, timeout=impatient)
            may_write.set()
            headers = {"x-stainless-retry-count": "1"}
            answers = [
                await client.post("/chat/completions", json={"messages": [QUESTION]}, headers=headers) for _ in "ab"
            ]
        assert model.turns == ["2"]
        return [answer.json()["choices"][0]["message"]["content"] for answer in answers]

    assert asyncio.run(run()) == ["1", "1"]


@pytest.mark.parametrize(
    ("options", "code"), [({"max_tokens": 6}, "context_length_exceeded"), ({"max_turns": 1}, "max_turns")]
)
def test_a_limit_of_the_run_cuts_the_episode(options: dict[str, int], code: str) -> None:
    context = context_of(**{name: value for name, value in options.items() if name == "max_turns"})
    limits = {name: value for name, value in options.items() if name == "max_tokens"}
    bodies = {"messages": [QUESTION]}, {"messages": [QUESTION, ONE, ANSWER]}
    [_, second], session = talk(KnownModel("1", "2"), *bodies, context=context, **limits)
    assert second.status_code == 400 and second.json()["error"]["code"] == code
    assert session.is_cut and not session.failed.done() and not session.episode(1.0, None).finished


def test_a_prompt_that_is_too_long_fails_the_episode() -> None:
    [response], session = talk(KnownModel(), {"messages": [{"role": "user", "content": "1" * 40}]})
    assert response.status_code == 400 and "max_prompt_tokens=24" in str(session.failed.result())


def test_a_response_and_the_items_that_follow_it() -> None:
    model = KnownModel(f"12{CALL}", "## 408")
    tool = {"type": "function", **TOOLS[0]["function"]}
    shared = {"tools": [tool], "instructions": "="}

    async def run():
        async with client_of(session_of(model)) as client:
            first = (await post(client, "/responses", input="12*34=", **shared)).json()
            output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "408"}
            second = (await post(client, "/responses", input=[QUESTION, *first["output"], output], **shared)).json()
        return first, second

    first, second = asyncio.run(run())

    assert first["object"] == "response" and first["status"] == "completed" and first["id"] == "resp_5-0-0"
    message, call = first["output"]
    assert message["content"] == [{"type": "output_text", "text": "12", "annotations": [], "logprobs": []}]
    assert call["type"] == "function_call" and json.loads(call["arguments"]) == {"expression": "12*34"}
    assert first["usage"]["total_tokens"] == first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert second["output"][0]["content"][0]["text"] == "## 408"
    assert decode(model.prompts[1]).endswith(f"<assistant>12{CALL}<end><tool>408<end><assistant>")


def test_a_response_follows_another_by_its_id() -> None:
    model = KnownModel("1", "2")
    first, second = {"input": "12*34=", "instructions": "="}, {"input": "=", "instructions": "="}
    bodies = first, {**second, "previous_response_id": "resp_5-0-0"}, {**second, "previous_response_id": "resp_none"}
    answers, _ = talk(model, *bodies, path="/responses")
    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert decode(model.prompts[1]).endswith("<user>12*34=<end><assistant>1<end><user>=<end><assistant>")


def test_the_events_of_a_response_that_streams() -> None:
    [response], _ = talk(
        KnownModel(f"12{CALL}"),
        {"input": "12*34=", "stream": True, "tools": [{"type": "function", **TOOLS[0]["function"]}]},
        path="/responses",
    )
    found = [json.loads(line) for line in events(response)]
    assert [event["type"].removeprefix("response.") for event in found] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event["sequence_number"] for event in found] == list(range(13))
    assert found[-1]["response"]["output"][1]["name"] == "calculate" and found[0]["response"]["output"] == []
    assert "event: response.completed\n" in response.text


def test_a_cut_response_is_incomplete() -> None:
    [response], _ = talk(KnownModel("123"), {"input": "12*34=", "max_output_tokens": 1}, path="/responses")
    assert response.json()["status"] == "incomplete"
    assert response.json()["incomplete_details"] == {"reason": "max_output_tokens"}

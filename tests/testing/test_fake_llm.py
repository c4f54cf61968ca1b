"""The fake model provider: turns, results and faults in four wire formats. The real SDKs use it in tests/adapters."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from toolway.testing import FakeLLM, LLMFault, ToolOutput, ToolUse, Turn

Json = dict[str, Any]
CALLS = [ToolUse("add", {"a": 1}), ToolUse("add", {"a": 2})]
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}


def post(llm: FakeLLM, path: str, body: Json) -> tuple[int, dict[str, str], bytes]:
    host = llm.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=20)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        try:
            data = response.read()
        except http.client.IncompleteRead as exc:
            data = exc.partial
        return response.status, {name.lower(): value for name, value in response.getheaders()}, data
    finally:
        connection.close()


def first_request(name: str) -> Json:
    requests: dict[str, Json] = {
        "openai-chat": {"model": "m", "messages": [{"role": "user", "content": "go"}]},
        "openai-responses": {"model": "m", "input": "go"},
        "anthropic": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]},
        "gemini": {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
    }
    return requests[name]


def second_request(name: str, answer: Json) -> Json:
    """Return the request with the first answer and the results of its two calls."""
    body = first_request(name)
    if name == "openai-chat":
        message = answer["choices"][0]["message"]
        results = [{"role": "tool", "tool_call_id": each["id"], "content": "ok"} for each in message["tool_calls"]]
        body["messages"] += [message, *results]
    elif name == "openai-responses":
        results = [
            {"type": "function_call_output", "call_id": each["call_id"], "output": "ok"} for each in answer["output"]
        ]
        body["input"] = [{"role": "user", "content": "go"}, *answer["output"], *results]
    elif name == "anthropic":
        results = [{"type": "tool_result", "tool_use_id": each["id"], "content": "ok"} for each in answer["content"]]
        body["messages"] += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
    else:
        content = answer["candidates"][0]["content"]
        results = [
            {"functionResponse": {**each["functionCall"], "response": {"output": "ok"}}} for each in content["parts"]
        ]
        body["contents"] += [content, {"role": "user", "parts": results}]
    return body


@pytest.mark.parametrize("name", PATHS)
def test_next_turn_is_found_from_the_request(name):
    with FakeLLM([Turn(calls=CALLS), "done"]) as llm:
        answers = [json.loads(post(llm, PATHS[name], first_request(name))[2]) for _ in range(2)]
        last = post(llm, PATHS[name], second_request(name, answers[0]))
    assert "done" in last[2].decode()
    assert [each.turn for each in llm.requests] == [0, 0, 1]
    assert {each.format for each in llm.requests} == {name}
    assert [(each.call_id, each.text) for each in llm.results] == [("call_0_0", "ok"), ("call_0_1", "ok")]


def test_stored_conversation_is_found_by_last_response_id():
    with FakeLLM([Turn(calls=CALLS[:1]), "done"]) as llm:
        first = json.loads(post(llm, PATHS["openai-responses"], first_request("openai-responses"))[2])
        result = {"type": "function_call_output", "call_id": "call_0_0", "output": "ok"}
        more = {"model": "m", "previous_response_id": first["id"], "input": [result]}
        assert b"done" in post(llm, PATHS["openai-responses"], more)[2]
        first = json.loads(post(llm, PATHS["anthropic"], first_request("anthropic"))[2])
        block = {"type": "tool_result", "tool_use_id": "call_0_0", "content": "no", "is_error": True}
        thread = {"type": "continue", "previous_message_id": first["id"]}
        more = {"model": "m", "thread": thread, "messages": [{"role": "user", "content": [block]}]}
        assert b"done" in post(llm, PATHS["anthropic"], more)[2]
    assert llm.results == [ToolOutput("call_0_0", "ok"), ToolOutput("call_0_0", "no", True)]


@pytest.mark.parametrize("name", PATHS)
def test_fault_ends_after_its_times(name):
    with FakeLLM([Turn("fine", fault=LLMFault("429", times=2, retry_after=1.5))]) as llm:
        answers = [post(llm, PATHS[name], first_request(name)) for _ in range(3)]
    assert [status for status, _, _ in answers] == [429, 429, 200]
    assert answers[0][1]["retry-after"] == "1.5"
    assert json.loads(answers[0][2])["error"]["message"] == "a scripted fault"


@pytest.mark.parametrize("kind", ["broken_json", "cut"])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", PATHS)
def test_response_can_be_broken_or_cut(name, streams, kind):
    path, body = PATHS[name], first_request(name)
    if name == "gemini" and streams:
        path = path.replace(":generate", ":streamGenerate")
    elif streams:
        body["stream"] = True
    with FakeLLM([Turn("a text of some length", fault=LLMFault(kind))]) as llm:
        status, headers, data = post(llm, path, body)
        whole = post(llm, path, body)[2]
    assert status == 200
    assert len(data) < len(whole)
    if not streams:
        with pytest.raises(ValueError):
            json.loads(data)
        assert (int(headers["content-length"]) > len(data)) is (kind == "cut")


def test_slow_response_starts_later():
    with FakeLLM([Turn("late", fault=LLMFault("slow", seconds=0.05))]) as llm:
        assert b"late" in post(llm, PATHS["anthropic"], first_request("anthropic"))[2]


def test_script_may_be_a_function_of_the_request():
    with FakeLLM(lambda request: f"{request.model} has {len(request.tools)} tools") as llm:
        answer = json.loads(post(llm, PATHS["anthropic"], {**first_request("anthropic"), "tools": [{"name": "a"}]})[2])
    assert answer["content"] == [{"type": "text", "text": "m has 1 tools"}]
    assert answer["usage"]["input_tokens"] > 1


def test_invalid_request_gets_an_error():
    with FakeLLM(["x"]) as llm:
        assert post(llm, "/v1/embeddings", {})[0] == 404
        assert post(llm, PATHS["openai-chat"], [])[0] == 400  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no turn"):
        FakeLLM([])

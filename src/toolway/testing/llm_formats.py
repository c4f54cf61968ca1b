"""Wire formats of model providers, seen from the provider's side: requests are read, answers are written. No I/O.

Written from the published API references: OpenAI chat completions and responses, Anthropic messages, Gemini
generateContent; `bedrock_format` has Bedrock Converse. An answer is built once as a whole; a stream is cut from it.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

Json: TypeAlias = dict[str, Any]

#: (call id, tool, arguments: an object, or a string that is sent instead of it)
CallParts: TypeAlias = tuple[str, str, "Json | str"]

#: (call id, text, is an error, tool)
ResultParts: TypeAlias = tuple[str, str, bool, str]

_OWN_CALL_ID: Final = re.compile(r"call_(\d+)_\d+")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one answer. `input` includes the cache's tokens, `output` the reasoning's."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0  # Gemini has none
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class ModelReply:
    """Content of one answer of the fake model, before it is written in a format."""

    id: str
    model: str
    text: str
    calls: Sequence[CallParts]
    stop: str  # why it ended, if not by itself
    usage: TokenUsage
    created: int  # seconds since 1970


@dataclass(slots=True)
class Conversation:
    """Parsed request to a model: model, offered tools, number of model turns, and tool results after the last turn."""

    model: str
    tools: list[str]
    streams: bool
    turns: int = 0
    results: list[ResultParts] = field(default_factory=list)
    _in_turn: bool = False

    def add_model_part(self, call_id: str = "") -> None:
        """Count a message part that the model wrote. Consecutive parts belong to one turn.

        A call id from the fake provider contains the number of its turn, so parts with the same turn number belong to
        one turn, too.
        """
        own = _OWN_CALL_ID.fullmatch(call_id)
        if own:
            self.turns = max(self.turns, int(own[1]) + 1)
        elif not self._in_turn:
            self.turns += 1
        if not self._in_turn:
            self.results = []
        self._in_turn = True

    def add_client_part(self) -> None:
        self._in_turn = False

    def add_result(self, call_id: str, text: str, is_error: bool = False, tool: str = "") -> None:
        self._in_turn = False
        self.results.append((call_id, text, is_error, tool))


class WireFormat(ABC):
    """Wire format of one provider API: reads requests, and writes answers, streams and errors."""

    name: ClassVar[str]
    path: ClassVar[re.Pattern[str]]
    usage_key: ClassVar[str] = "usage"  # of the usage block in an answer
    stream_type: ClassVar[str] = "text/event-stream"  # content type of a stream
    end_of_stream: ClassVar[bytes] = b""

    @abstractmethod
    def read(self, path: str, body: Json) -> Conversation:
        """Return the model, tools, turns and tool results of a request, given its URL path and its JSON body."""

    def previous_id(self, body: Json) -> str:
        """Return the id of the stored answer that a request continues, or ""."""
        return ""

    @abstractmethod
    def answer(self, reply: ModelReply) -> Json:
        """Return the answer of the model as one JSON document in this format."""

    @abstractmethod
    def stream(self, answer: Json) -> Iterator[Json]:
        """Yield the events of a stream that sends this answer of the model, in this format."""

    def frame(self, event: Json) -> bytes:
        """Return the bytes of an event on an answer's stream."""
        return f"data: {json.dumps(event)}\n\n".encode()

    def error(self, status: int, message: str) -> Json:
        """Return the JSON body of an error response with this HTTP status, in this format."""
        kinds = {400: "invalid_request_error", 429: "rate_limit_error", 529: "overloaded_error"}
        return {"error": {"message": message, "type": kinds.get(status, "server_error"), "code": None, "param": None}}

    def error_headers(self, status: int) -> dict[str, str]:
        """Return the extra HTTP headers of an error response with this status; empty for most formats."""
        return {}


def text_of(content: Any) -> str:
    """Return the text of a message's content, which may be a string, a part, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return str(content["text"]) if "text" in content else json.dumps(content)
    return "" if content is None else json.dumps(content)


def json_text(arguments: Json | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def halves(text: str) -> Iterator[str]:
    """Yield a string in two halves, so streams send it in more than one event."""
    middle = (len(text) + 1) // 2
    yield from (part for part in (text[:middle], text[middle:]) if part)


class OpenAIChat(WireFormat):
    """Wire format of OpenAI chat completions, which many other providers use as well."""

    name = "openai-chat"
    path = re.compile(r"/chat/completions$")
    end_of_stream = b"data: [DONE]\n\n"

    def read(self, path: str, body: Json) -> Conversation:
        tools = [each["function"]["name"] for each in body.get("tools") or () if "function" in each]
        found = Conversation(str(body.get("model", "")), tools, bool(body.get("stream")))
        for message in body.get("messages", ()):
            if message.get("role") == "assistant":
                calls = message.get("tool_calls") or [{}]
                found.add_model_part(str(calls[0].get("id", "")))
            elif message.get("role") == "tool":
                found.add_result(str(message.get("tool_call_id", "")), text_of(message.get("content")))
            else:
                found.add_client_part()
        return found

    def answer(self, reply: ModelReply) -> Json:
        refusal = reply.text if reply.stop == "refusal" else None
        message: Json = {
            "role": "assistant",
            "content": None if refusal or not reply.text else reply.text,
            "refusal": refusal,
        }
        if reply.calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": json_text(arguments)}}
                for call_id, name, arguments in reply.calls
            ]
        reason = "length" if reply.stop == "length" else "tool_calls" if reply.calls else "stop"
        return {
            "id": reply.id,
            "object": "chat.completion",
            "created": reply.created,
            "model": reply.model,
            "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
            "usage": {
                "prompt_tokens": reply.usage.input,
                "completion_tokens": reply.usage.output,
                "total_tokens": reply.usage.input + reply.usage.output,
                "prompt_tokens_details": {
                    "cached_tokens": reply.usage.cache_read,
                    "cache_write_tokens": reply.usage.cache_write,
                },
                "completion_tokens_details": {"reasoning_tokens": reply.usage.reasoning},
            },
        }

    def stream(self, answer: Json) -> Iterator[Json]:
        choice = answer["choices"][0]
        message = choice["message"]
        base = {**answer, "object": "chat.completion.chunk", "usage": None}

        def chunk(delta: Json, reason: str | None = None) -> Json:
            return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}

        yield chunk({"role": "assistant", "content": None})
        for key in ("content", "refusal"):
            yield from (chunk({key: part}) for part in halves(message[key] or ""))
        for index, call in enumerate(message.get("tool_calls", ())):
            yield chunk({"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]})
            for part in halves(call["function"]["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        yield chunk({}, choice["finish_reason"])
        yield {**base, "choices": [], "usage": answer["usage"]}


class OpenAIResponses(WireFormat):
    """Wire format of OpenAI responses: items instead of messages, and conversations that the provider stores."""

    name = "openai-responses"
    path = re.compile(r"/responses$")

    def previous_id(self, body: Json) -> str:
        return str(body.get("previous_response_id") or "")

    def read(self, path: str, body: Json) -> Conversation:
        tools = [each["name"] for each in body.get("tools") or () if each.get("type") == "function"]
        found = Conversation(str(body.get("model", "")), tools, bool(body.get("stream")))
        items = body.get("input", ())
        for item in [] if isinstance(items, str) else items:
            kind = item.get("type", "message")
            if kind == "function_call_output":
                found.add_result(str(item.get("call_id", "")), text_of(item.get("output")))
            elif kind in ("function_call", "reasoning") or item.get("role") == "assistant":
                found.add_model_part(str(item.get("call_id", "")))
            else:
                found.add_client_part()
        return found

    def answer(self, reply: ModelReply) -> Json:
        output: list[Json] = []
        if reply.text:
            part = (
                {"type": "refusal", "refusal": reply.text}
                if reply.stop == "refusal"
                else {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
            )
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{reply.id}",
                    "status": "completed",
                    "role": "assistant",
                    "content": [part],
                }
            )
        output += [
            {
                "type": "function_call",
                "id": f"fc_{reply.id}_{number}",
                "call_id": call_id,
                "name": name,
                "arguments": json_text(arguments),
                "status": "completed",
            }
            for number, (call_id, name, arguments) in enumerate(reply.calls)
        ]
        return {
            "id": reply.id,
            "object": "response",
            "created_at": reply.created,
            "status": "incomplete" if reply.stop == "length" else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if reply.stop == "length" else None,
            "error": None,
            "instructions": None,
            "metadata": {},
            "model": reply.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": reply.usage.input,
                "input_tokens_details": {
                    "cached_tokens": reply.usage.cache_read,
                    "cache_write_tokens": reply.usage.cache_write,
                },
                "output_tokens": reply.usage.output,
                "output_tokens_details": {"reasoning_tokens": reply.usage.reasoning},
                "total_tokens": reply.usage.input + reply.usage.output,
            },
        }

    def stream(self, answer: Json) -> Iterator[Json]:
        for number, event in enumerate(self._events(answer)):
            yield {**event, "sequence_number": number}

    def _events(self, answer: Json) -> Iterator[Json]:
        begun = {**answer, "status": "in_progress", "output": [], "usage": None}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(answer["output"]):
            place = {"output_index": index, "item_id": item["id"]}
            is_call = item["type"] == "function_call"
            empty: Json = {"arguments": ""} if is_call else {"content": []}
            added = {**item, "status": "in_progress", **empty}
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
            if is_call:
                kind = "response.function_call_arguments"
                for part in halves(item["arguments"]):
                    yield {"type": f"{kind}.delta", **place, "delta": part}
                yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": item["arguments"]}
            else:
                yield from self._text_events(item["content"][0], {**place, "content_index": 0})
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{answer['status']}", "response": answer}

    @staticmethod
    def _text_events(part: Json, place: Json) -> Iterator[Json]:
        key = "refusal" if part["type"] == "refusal" else "text"
        kind = f"response.{part['type']}"
        more: Json = {} if key == "refusal" else {"logprobs": []}
        yield {"type": "response.content_part.added", **place, "part": {**part, key: ""}}
        for text in halves(part[key]):
            yield {"type": f"{kind}.delta", **place, "delta": text, **more}
        yield {"type": f"{kind}.done", **place, key: part[key], **more}
        yield {"type": "response.content_part.done", **place, "part": part}

    def frame(self, event: Json) -> bytes:
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


class AnthropicMessages(WireFormat):
    """Wire format of Anthropic messages, including a conversation that the provider stores (`thread`)."""

    name = "anthropic"
    path = re.compile(r"/messages$")

    def previous_id(self, body: Json) -> str:
        thread = body.get("thread")
        return str(thread.get("previous_message_id", "")) if isinstance(thread, dict) else ""

    def read(self, path: str, body: Json) -> Conversation:
        tools = [str(each.get("name", "")) for each in body.get("tools") or ()]
        found = Conversation(str(body.get("model", "")), tools, bool(body.get("stream")))
        for message in body.get("messages", ()):
            content = message.get("content")
            blocks = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
            if message.get("role") == "assistant":
                found.add_model_part(next((str(each["id"]) for each in blocks if each.get("type") == "tool_use"), ""))
                continue
            found.add_client_part()
            for block in blocks:
                if block.get("type") == "tool_result":
                    text = text_of(block.get("content"))
                    found.add_result(str(block.get("tool_use_id", "")), text, bool(block.get("is_error")))
        return found

    def answer(self, reply: ModelReply) -> Json:
        content: list[Json] = [{"type": "text", "text": reply.text}] if reply.text else []
        content += [
            {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            for call_id, name, arguments in reply.calls
        ]
        reasons = {"length": "max_tokens", "refusal": "refusal"}
        return {
            "id": reply.id,
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": content,
            "stop_reason": reasons.get(reply.stop) or ("tool_use" if reply.calls else "end_turn"),
            "stop_sequence": None,
            "usage": {
                "input_tokens": reply.usage.input - reply.usage.cache_read - reply.usage.cache_write,
                "cache_read_input_tokens": reply.usage.cache_read,
                "cache_creation_input_tokens": reply.usage.cache_write,
                "output_tokens": reply.usage.output,
                "output_tokens_details": {"thinking_tokens": reply.usage.reasoning},
            },
        }

    def stream(self, answer: Json) -> Iterator[Json]:
        begun = {**answer["usage"], "output_tokens": 1, "output_tokens_details": None}  # the end has the whole usage
        yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None, "usage": begun}}
        for index, block in enumerate(answer["content"]):
            is_text = block["type"] == "text"
            empty = {**block, "text": ""} if is_text else {**block, "input": {}}
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            for part in halves(block["text"] if is_text else json_text(block["input"])):
                delta: Json = (
                    {"type": "text_delta", "text": part}
                    if is_text
                    else {"type": "input_json_delta", "partial_json": part}
                )
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        delta = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": answer["usage"]}
        yield {"type": "message_stop"}

    def frame(self, event: Json) -> bytes:
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    def error(self, status: int, message: str) -> Json:
        return {"type": "error", "error": {**super().error(status, message)["error"], "message": message}}


class GeminiGenerate(WireFormat):
    """Wire format of Gemini: generateContent and streamGenerateContent."""

    name = "gemini"
    usage_key = "usageMetadata"
    path = re.compile(r"/models/([^/:]+):(stream)?generateContent$", re.IGNORECASE)

    def read(self, path: str, body: Json) -> Conversation:
        named = self.path.search(path)
        declared: Iterable[Json] = (
            each
            for tool in body.get("tools") or ()
            for each in tool.get("functionDeclarations") or tool.get("function_declarations") or ()
        )
        found = Conversation(named[1] if named else "", [each["name"] for each in declared], bool(named and named[2]))
        for content in body.get("contents", ()):
            parts = [each for each in content.get("parts") or () if isinstance(each, dict)]
            if content.get("role") == "model":
                called: Json = next((each["functionCall"] for each in parts if "functionCall" in each), {})
                found.add_model_part(str(called.get("id") or ""))
                continue
            found.add_client_part()
            for part in parts:
                if "functionResponse" in part:
                    response = part["functionResponse"]
                    value = response.get("response") or {}
                    shown = next((value[key] for key in ("error", "result", "output") if key in value), value)
                    name = str(response.get("name", ""))
                    found.add_result(str(response.get("id") or ""), text_of(shown), "error" in value, name)
        return found

    def answer(self, reply: ModelReply) -> Json:
        parts: list[Json] = [{"text": reply.text}] if reply.text else []
        for call_id, name, arguments in reply.calls:
            parts.append({"functionCall": {"name": name, "args": arguments, **({"id": call_id} if call_id else {})}})
        reasons = {"length": "MAX_TOKENS", "refusal": "SAFETY"}
        content = {"role": "model", "parts": parts}
        return {
            "candidates": [{"content": content, "finishReason": reasons.get(reply.stop, "STOP"), "index": 0}],
            "usageMetadata": {
                "promptTokenCount": reply.usage.input,
                "cachedContentTokenCount": reply.usage.cache_read,
                "candidatesTokenCount": reply.usage.output - reply.usage.reasoning,
                "thoughtsTokenCount": reply.usage.reasoning,
                "totalTokenCount": reply.usage.input + reply.usage.output,
            },
            "modelVersion": reply.model,
            "responseId": reply.id,
        }

    def stream(self, answer: Json) -> Iterator[Json]:
        candidate = answer["candidates"][0]
        parts: list[Json] = []
        for part in candidate["content"]["parts"]:
            parts += [{"text": half} for half in halves(part["text"])] if "text" in part else [part]
        begun = {**answer["usageMetadata"], "candidatesTokenCount": 1}  # the last chunk has the whole usage
        for number, part in enumerate(parts or [{"text": ""}], 1):
            chunk = {"content": {"role": "model", "parts": [part]}, "index": 0}
            if number >= len(parts):
                chunk["finishReason"] = candidate["finishReason"]
                yield {**answer, "candidates": [chunk]}
            else:
                yield {**answer, "candidates": [chunk], "usageMetadata": begun}

    def error(self, status: int, message: str) -> Json:
        names = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        return {"error": {"code": status, "message": message, "status": names.get(status, "INTERNAL")}}

"""Wire format of Amazon Bedrock, seen from the provider's side: Converse and ConverseStream. No I/O.

A stream is not one of server-sent events, but of binary messages (`application/vnd.amazon.eventstream`): two lengths
and their checksum, headers, a JSON document, and a checksum of it all.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from toolway.testing.llm_formats import (
    Conversation,
    Json,
    ModelReply,
    WireFormat,
    halves,
    json_text,
    text_of,
)

_STRING_HEADER: Final = 7  # type of a header value
_ERRORS: Final = {
    400: "ValidationException",
    403: "AccessDeniedException",
    408: "ModelTimeoutException",
    429: "ThrottlingException",
    500: "InternalServerException",
}


class BedrockConverse(WireFormat):
    """Wire format of Amazon Bedrock: Converse (one JSON document) and ConverseStream, for models of all makers."""

    name = "bedrock"
    path = re.compile(r"/model/([^/]+)/converse(-stream)?$")
    stream_type = "application/vnd.amazon.eventstream"

    def read(self, path: str, body: Json) -> Conversation:
        named = self.path.search(path)
        config: Json = body.get("toolConfig") or {}
        tools = [each["toolSpec"]["name"] for each in config.get("tools") or () if "toolSpec" in each]
        found = Conversation(unquote(named[1]) if named else "", tools, bool(named and named[2]))
        for message in body.get("messages", ()):
            blocks = [each for each in message.get("content") or () if isinstance(each, dict)]
            if message.get("role") == "assistant":
                called: Json = next((each["toolUse"] for each in blocks if "toolUse" in each), {})
                found.add_model_part(str(called.get("toolUseId", "")))
                continue
            found.add_client_part()
            for block in blocks:
                if "toolResult" in block:
                    result: Json = block["toolResult"]
                    parts = [each.get("json", each) for each in result.get("content") or ()]
                    is_error = result.get("status") == "error"
                    found.add_result(str(result.get("toolUseId", "")), text_of(parts), is_error)
        return found

    def answer(self, reply: ModelReply) -> Json:
        content: list[Json] = [{"text": reply.text}] if reply.text else []
        content += [
            {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}
            for call_id, name, arguments in reply.calls
        ]
        reasons = {"length": "max_tokens", "refusal": "guardrail_intervened"}
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": reasons.get(reply.stop) or ("tool_use" if reply.calls else "end_turn"),
            "usage": {
                "inputTokens": reply.usage.input - reply.usage.cache_read - reply.usage.cache_write,
                "outputTokens": reply.usage.output,
                "totalTokens": reply.usage.input + reply.usage.output,
                "cacheReadInputTokens": reply.usage.cache_read,
                "cacheWriteInputTokens": reply.usage.cache_write,
            },
            "metrics": {"latencyMs": 1},
        }

    def stream(self, answer: Json) -> Iterator[Json]:
        """Yield the events of a ConverseStream with this answer, each as an object with its type as the only key."""
        message = answer["output"]["message"]
        yield {"messageStart": {"role": message["role"]}}
        for index, block in enumerate(message["content"]):
            place = {"contentBlockIndex": index}
            if "text" in block:  # has no separate start
                deltas: list[Json] = [{"text": part} for part in halves(block["text"])]
            else:
                call: Json = block["toolUse"]
                named = {"toolUseId": call["toolUseId"], "name": call["name"]}
                yield {"contentBlockStart": {**place, "start": {"toolUse": named}}}
                deltas = [{"toolUse": {"input": part}} for part in halves(json_text(call["input"]))]
            for delta in deltas:
                yield {"contentBlockDelta": {**place, "delta": delta}}
            yield {"contentBlockStop": place}
        yield {"messageStop": {"stopReason": answer["stopReason"]}}
        yield {"metadata": {"usage": answer["usage"], "metrics": answer["metrics"]}}

    def frame(self, event: Json) -> bytes:
        kind, body = next(iter(event.items()))
        padded = {**body, "p": "abcdefgh"}  # Bedrock pads events, so their lengths say less
        headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
        return encode_message(headers, json.dumps(padded).encode())

    def error(self, status: int, message: str) -> Json:
        return {"message": message}

    def error_headers(self, status: int) -> dict[str, str]:
        return {"x-amzn-ErrorType": _ERRORS.get(status, "ServiceUnavailableException")}


def encode_message(headers: dict[str, str], payload: bytes) -> bytes:
    """Return one binary message of an AWS event stream, with these headers and this payload."""
    encoded = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", _STRING_HEADER, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(encoded) + len(payload), len(encoded))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + encoded + payload
    return message + struct.pack("!I", zlib.crc32(message))

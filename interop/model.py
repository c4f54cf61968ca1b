"""A fake model that requests tool calls, so Claude Code works without a network."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Block = dict[str, Any]  # of a message: a text, or the use of a tool


@contextmanager
def serve_model(tool: str, arguments: dict[str, Any], offered: set[str]) -> Iterator[str]:
    """Serve the Messages API and yield its URL. The model calls one tool, and answers with its result.

    `offered` receives the names of the tools that the client offers.
    """

    def next_block(results: list[str], names: set[str]) -> Block:
        offered.update(names)
        if not results and tool in names:
            return tool_use(tool, arguments, 1)
        return {"type": "text", "text": f"answer: {results[0] if results else None}"}

    with serve_script(next_block) as url:
        yield url


def tool_use(tool: str, arguments: dict[str, Any], number: int) -> Block:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": arguments}


@contextmanager
def serve_script(next_block: Callable[[list[str], set[str]], Block]) -> Iterator[str]:
    """Serve the Messages API and yield its URL.

    `next_block` returns the answer of the model, from the results of its tool calls and the names of the offered tools.
    """

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            names = {str(each.get("name")) for each in body.get("tools", ())}
            block = next_block(_tool_results(body.get("messages", ())), names)
            self._send(_message(block), stream=body.get("stream") is True)

        def _send(self, message: dict[str, Any], *, stream: bool) -> None:
            data = b"".join(_events(message)) if stream else json.dumps(message).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if stream else "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _tool_results(messages: Any) -> list[str]:
    """Return the text of all tool results in the conversation, in order."""
    found = []
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                parts = block.get("content")
                found.append(parts if isinstance(parts, str) else "".join(part.get("text", "") for part in parts or ()))
    return found


def _message(block: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-fake",
        "content": [block],
        "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _events(message: dict[str, Any]) -> Iterator[bytes]:
    """Yield the message as server-sent events."""
    [block] = message["content"]
    if block["type"] == "tool_use":
        first = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        first, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    for event in (
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": first},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

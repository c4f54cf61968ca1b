"""Fake model provider on a local port, which answers with scripted turns in the wire formats of real providers.

    with FakeLLM([Turn(calls=[ToolUse("demo__add", {"a": 1, "b": 2})]), "The sum is 3."]) as llm:
        client = openai.OpenAI(base_url=llm.openai_url, api_key="none")

The formats are OpenAI chat completions and responses, Anthropic messages, Gemini generateContent (`llm_formats`) and
Bedrock Converse (`bedrock_format`), each as one JSON document or as a stream. The next turn is computed from the
request: it is the number of the model's turns in the conversation that the client sends. So a client that asks again
gets the same answer, and several conversations can share one server. A conversation that the provider stores
(`previous_response_id` of OpenAI, `thread` of Anthropic) is found by the id of its last answer.

The server runs in its own thread, without an event loop.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from toolway.testing.bedrock_format import BedrockConverse
from toolway.testing.llm_formats import (
    AnthropicMessages,
    GeminiGenerate,
    ModelReply,
    OpenAIChat,
    OpenAIResponses,
    TokenUsage,
    WireFormat,
)

Json: TypeAlias = dict[str, Any]

#: LLMFault of one answer:
#: "429", "500", "503", "529"  the status, as an error of the format;
#: "broken_json"               a body, or arguments in a stream, that is not JSON;
#: "cut"                       the connection ends in the middle of the answer;
#: "endless"                   the answer does not end until the client leaves or the server is closed;
#: "slow"                      the answer begins after `LLMFault.seconds`, or when the server is closed.
FaultKind = Literal["429", "500", "503", "529", "broken_json", "cut", "endless", "slow"]
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_FORMATS: Final[tuple[WireFormat, ...]] = (
    OpenAIChat(),
    OpenAIResponses(),
    AnthropicMessages(),
    GeminiGenerate(),
    BedrockConverse(),
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call of a scripted turn. `arguments` is an object, or the text that is sent instead of JSON."""

    name: str
    arguments: Json | str = field(default_factory=dict)
    id: str | None = None  # None: a unique id; "": none is sent, where the format allows it


@dataclass(frozen=True, slots=True)
class LLMFault:
    """A fault that the fake provider injects into its first `times` answers for one turn."""

    kind: FaultKind
    times: int = 1
    retry_after: float | None = None  # seconds, sent with a status
    seconds: float = 60.0  # of "slow"


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the fake model: a text, tool calls, or both."""

    text: str = ""
    calls: Sequence[ToolUse] = ()
    stop: Literal["", "length", "refusal"] = ""  # why the answer ended, if not by itself
    fault: LLMFault | None = None
    usage: TokenUsage | tuple[int, int] | None = None  # or input and output tokens; None: their characters, by four
    without_usage: bool = False  # the answer has no usage block: OpenAI formats only, as of some compatible endpoints


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of a tool call, which the client sent to the fake model."""

    call_id: str
    text: str
    is_error: bool = False  # only some formats have it
    name: str = ""  # only some formats have it


@dataclass(frozen=True, slots=True)
class LLMRequest:
    """One request that the fake provider received, with the same fields for all wire formats."""

    format: str  # "openai-chat", "openai-responses", "anthropic", "gemini" or "bedrock"
    turn: int  # number of the model's turns before this request
    model: str
    tools: tuple[str, ...]  # names of the offered tools
    results: tuple[ToolOutput, ...]  # tool results since the model's last turn
    streams: bool
    body: Json
    headers: Json


Script: TypeAlias = Sequence[Turn | str] | Callable[[LLMRequest], Turn | str]


class FakeLLM:
    """HTTP server that answers like a model provider. A context manager.

    All requests are in `requests`, the usage blocks of all whole answers in `usages`, in the words of the format.

    Args:
        script: The turns in their order, or a function that returns the turn for a request. A string is a turn with
            this text. After the last turn, the last one is repeated.

    Example:
        with FakeLLM(["Hello."]) as llm:
            client = anthropic.Anthropic(base_url=llm.anthropic_url, api_key="none")
    """

    def __init__(self, script: Script) -> None:
        if not callable(script) and not script:
            raise ValueError("the script has no turn")
        self._script = script
        self.requests: list[LLMRequest] = []
        self.usages: list[Json] = []
        self._faults_left: dict[tuple[str, int], int] = {}
        self._stored: dict[str, tuple[int, Json]] = {}  # answer id → number of turns with it, the request
        self._answers = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"llm": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-llm", daemon=True)
        thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Return the URL of the fake provider without a path, as the SDKs of Gemini and Bedrock need it."""
        assert self._server is not None, "the server is not started: use `with`"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """Return the base URL for clients of OpenAI."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """Return the base URL for clients of Anthropic."""
        return self.url

    gemini_url = url
    bedrock_url = url

    @property
    def results(self) -> list[ToolOutput]:
        """Return all tool results that clients sent, in request order."""
        return [result for request in self.requests for result in request.results]

    # -- one request --------------------------------------------------------------------------------------------------

    def _read(self, wire: WireFormat, path: str, body: Json, headers: Json) -> LLMRequest:
        earlier, body = self._continued(wire, body)
        conversation = wire.read(path, body)
        return LLMRequest(
            format=wire.name,
            turn=earlier + conversation.turns,
            model=conversation.model,
            tools=tuple(conversation.tools),
            results=tuple(ToolOutput(*each) for each in conversation.results),
            streams=conversation.streams,
            body=body,
            headers=headers,
        )

    def _continued(self, wire: WireFormat, body: Json) -> tuple[int, Json]:
        """Return the number of model turns in the stored conversation that `body` continues, and the completed body.

        The number is 0 if the request names no stored answer. A body without tools gets the previous request's tools.
        """
        previous = wire.previous_id(body)
        if not previous:
            return 0, body
        with self._lock:
            turns, request = self._stored.get(previous, (0, {}))
        return turns, {"tools": request.get("tools", []), **body}

    def _answer(self, request: LLMRequest) -> tuple[Turn, str]:
        """Record a request; return the scripted turn for it, and the id of its answer.

        If the turn's fault has already occurred as often as it may (`times`), the turn is returned without the fault.
        """
        with self._lock:
            self.requests.append(request)
            self._answers += 1
            number = self._answers
        if callable(self._script):
            turn = self._script(request)
        else:
            turn = self._script[min(request.turn, len(self._script) - 1)]
        turn = Turn(turn) if isinstance(turn, str) else turn
        if turn.fault is not None:
            key = (request.format, request.turn)
            with self._lock:
                left = self._faults_left.get(key, turn.fault.times)
                self._faults_left[key] = left - 1
            if left <= 0:
                turn = replace(turn, fault=None)
        answer_id = f"fake-{number}"
        with self._lock:
            self._stored[answer_id] = (request.turn + 1, request.body)
        return turn, answer_id

    def _wait(self, seconds: float) -> None:
        self._closed.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error in a request handler, unless it only happened because the client closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    llm: FakeLLM

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            self._send(413, {"error": {"message": "the body is too large"}})
            return
        data = self.rfile.read(length)
        path = urlsplit(self.path).path
        wire = next((each for each in _FORMATS if each.path.search(path)), None)
        if wire is None:
            self._send(404, {"error": {"message": f"no model API at {path}"}})
            return
        try:
            body = json.loads(data or b"{}")
        except ValueError as exc:
            self._send(400, wire.error(400, f"the body is not JSON: {exc}"))
            return
        if not isinstance(body, dict):
            self._send(400, wire.error(400, "the body is not an object"))
            return
        request = self.llm._read(wire, path, body, {name.lower(): value for name, value in self.headers.items()})
        turn, answer_id = self.llm._answer(request)
        try:
            self._send_turn(wire, request, turn, answer_id)
        except OSError:  # the client has gone
            self.close_connection = True

    def _send_turn(self, wire: WireFormat, request: LLMRequest, turn: Turn, answer_id: str) -> None:
        fault = turn.fault.kind if turn.fault is not None else ""
        if turn.fault is not None and fault == "slow":
            self.llm._wait(turn.fault.seconds)
        elif turn.fault is not None and fault.isdigit():
            headers = wire.error_headers(int(fault))
            if turn.fault.retry_after is not None:
                headers["Retry-After"] = f"{turn.fault.retry_after:g}"
            self._send(int(fault), wire.error(int(fault), "a scripted fault"), headers)
            return
        calls = [
            (f"call_{request.turn}_{number}" if each.id is None else each.id, each.name, each.arguments)
            for number, each in enumerate(turn.calls)
        ]
        chars = len(json.dumps(request.body)), len(turn.text) + sum(len(str(each.arguments)) for each in turn.calls)
        usage = turn.usage or (chars[0] // 4 + 1, chars[1] // 4 + 1)
        usage = usage if isinstance(usage, TokenUsage) else TokenUsage(*usage)
        answer = wire.answer(ModelReply(answer_id, request.model, turn.text, calls, turn.stop, usage, int(time.time())))
        if not fault or fault == "slow":
            self.llm.usages.append(dict(answer[wire.usage_key]))
        if turn.without_usage:
            answer[wire.usage_key] = None
        if fault == "endless":
            self._send_endless(wire, answer if request.streams else None)
            return
        if not request.streams:
            data = json.dumps(answer).encode()
            self._send_bytes(200, "application/json", data[: len(data) // 2] if fault == "broken_json" else data, fault)
            return
        self._begin_stream(wire.stream_type)
        events = list(wire.stream(answer))
        if fault == "cut":
            events = events[: max(1, len(events) // 2)]
        for event in events:
            text = wire.frame(event)
            self.wfile.write(text[: len(text) // 2] + b"\n\n" if fault == "broken_json" else text)
        if fault == "cut":
            self.wfile.write(b'data: {"cut')
        else:
            self.wfile.write(wire.end_of_stream)

    def _begin_stream(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def _send_endless(self, wire: WireFormat, streamed: Json | None) -> None:
        """Send an endless response, until the fake provider is closed.

        A stream repeats its middle event. A response that is one JSON document repeats spaces before the document.
        """
        if streamed is None:
            self._begin_stream("application/json")
            part = b" " * 65_536
        else:
            self._begin_stream(wire.stream_type)
            frames = [wire.frame(event) for event in wire.stream(streamed)]
            part = frames[len(frames) // 2]
            self.wfile.write(b"".join(frames[: len(frames) // 2]))
        while not self.llm._closed.is_set():
            self.wfile.write(part)

    def _send(self, status: int, value: Json, headers: dict[str, str] | None = None) -> None:
        self._send_bytes(status, "application/json", json.dumps(value).encode(), "", headers)

    def _send_bytes(
        self, status: int, content_type: str, data: bytes, fault: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if fault == "cut":
            data = data[: len(data) // 2]
            self.close_connection = True
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: the fake provider writes no request log."""

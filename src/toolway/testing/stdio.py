"""Fake MCP server on stdin and stdout: blocking code, one thread for each call that waits."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Generator

from toolway.testing.server import FakePeer, ServerRequest
from toolway.testing.wire import (
    METHOD_NOT_FOUND,
    RpcError,
    Unanswered,
    as_object,
    cancelled_id,
    encode,
    make_error_response,
    make_request,
    parse_message,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from toolway.testing.faults import ActiveFaults, FaultSetting
    from toolway.testing.server import FakeServer, Steps, Wait
    from toolway.testing.wire import Id, Json

_CLIENT_TIMEOUT_S = 60  # seconds for the client's response


class StdoutWriter:
    """Stdout of the fake server, shared by threads that write whole lines.

    Once the pipe is broken, it stops writing.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._muted = False

    def write_message(self, message: Json) -> None:
        self.write_line(encode(message))

    def write_line(self, data: bytes) -> None:
        self.write(data + b"\n")

    def write(self, data: bytes) -> bool:
        """Write all of `data`. Return False if the output is muted or the pipe is broken."""
        with self._lock:
            rest = memoryview(data)
            try:
                while rest and not self._muted:
                    rest = rest[os.write(1, rest) :]
            except BrokenPipeError:
                self._muted = True
            return not self._muted

    def exclusive(self) -> AbstractContextManager[bool]:
        """Return a lock that keeps other threads from writing to stdout."""
        return self._lock

    def mute(self) -> None:
        self._muted = True

    def close(self) -> None:
        self._muted = True
        os.close(1)


class PendingRequest:
    """Request that the fake server sent to its client, with the response once it is received."""

    def __init__(self) -> None:
        self.received = threading.Event()
        self.response: Json | None = None


class StdioFaultContext:
    """Argument of a stdio fault function: the server, its stdout, and the response without the fault."""

    def __init__(self, stdio: StdioServer, setting: FaultSetting, response: Json | None = None) -> None:
        self._stdio = stdio
        self._has_response = response is not None
        self.response: Json = response or {"jsonrpc": "2.0", "id": 0}
        self.setting = setting
        self.server = stdio.server
        self.out = stdio.out

    def send_response(self) -> None:
        """Send the response without the fault. Does nothing if no request triggered the fault, as at the start."""
        if self._has_response:
            self.out.write_message(self.response)

    def add_structured_content(self, **fields: Any) -> None:
        """Add fields to the structured content of the response without the fault, for the test to read."""
        result = as_object(self.response.get("result"))
        result["structuredContent"] = {**as_object(result.get("structuredContent")), **fields}

    def send_request(self, method: str, params: Json) -> PendingRequest:
        return self._stdio.send_request(method, params)

    def in_flight_ids(self) -> list[Id]:
        return list(self._stdio.cancel_events)


class StdioPeer(FakePeer):
    """The only client of a fake stdio server: messages to it are written to stdout."""

    def __init__(self, out: StdoutWriter) -> None:
        super().__init__()
        self._out = out

    def send(self, message: Json) -> None:
        self._out.write_message(message)


class StdioServer:
    """Fake MCP server on stdin and stdout: reads requests and responds at once if possible.

    Each call that waits, and each fault, runs in a thread.
    """

    def __init__(self, server: FakeServer, faults: ActiveFaults) -> None:
        self.server = server
        self.faults = faults
        self.out = StdoutWriter()
        self.peer = StdioPeer(self.out)
        self.cancel_events: dict[Id, threading.Event] = {}  # set: cancelled
        self._pending_requests: dict[Id, PendingRequest] = {}
        self._request_ids = itertools.count(1)

    def run(self) -> None:
        self._run_faults_at("start")
        for line in sys.stdin.buffer:
            self._handle_line(line)
        self._run_faults_at("eof")

    def send_request(self, method: str, params: Json) -> PendingRequest:
        """Send a JSON-RPC request to the client. Does not wait: the result holds the later response."""
        pending = PendingRequest()
        id = f"ask-{next(self._request_ids)}"
        self._pending_requests[id] = pending
        self.out.write_message(make_request(id, method, params))
        return pending

    def _run_faults_at(self, point: str) -> None:
        for setting in self.faults.trigger_at(point):
            setting.mode.run(StdioFaultContext(self, setting))

    def _handle_line(self, line: bytes) -> None:
        try:
            message = parse_message(line)
        except RpcError as error:
            self.out.write_message(make_error_response(None, error))
            return
        if "method" not in message:
            self._handle_response(message)
        else:
            self.server.stats.count_request(message["method"])
            (self._handle_request if "id" in message else self._handle_notification)(message)

    def _handle_response(self, message: Json) -> None:
        pending = self._pending_requests.get(message.get("id", ""))
        if pending is not None and not pending.received.is_set():
            pending.response = message
            pending.received.set()

    def _handle_notification(self, message: Json) -> None:
        if self.server.era == "bare":  # it does not know notifications, so it answers them
            error = RpcError(METHOD_NOT_FOUND, f"Method not found: {message['method']}")
            self.out.write_message(make_error_response(None, error))
            return
        if message["method"] == "notifications/cancelled":
            cancelled = self.cancel_events.get(cancelled_id(message))
            if cancelled is not None:
                cancelled.set()

    def _handle_request(self, message: Json) -> None:
        try:
            setting = self.faults.trigger_for(message)
            if setting is None:
                self._respond(message)
            else:
                self._start_work(message["id"], self._run_fault, message, setting, inline=setting.mode.inline)
        except RpcError as error:
            self.out.write_message(make_error_response(message["id"], error))
        except Unanswered:
            pass

    def _respond(self, message: Json) -> None:
        response = self.server.handle(message, self.peer, self.out.write_message)
        if isinstance(response, Generator):
            self._start_work(message["id"], self._run_steps_and_respond, message["id"], response)
        else:
            self.out.write_message(response)

    def _start_work(self, id: Id, work: Callable[..., None], *arguments: Any, inline: bool = False) -> None:
        self.cancel_events[id] = threading.Event()
        if inline:
            self._run_work(id, work, *arguments)
        else:
            threading.Thread(target=self._run_work, args=(id, work, *arguments), daemon=True).start()

    def _run_work(self, id: Id, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Unanswered:
            pass
        finally:
            self.cancel_events.pop(id, None)

    def _run_steps_and_respond(self, id: Id, steps: Steps) -> None:
        response = self._run_steps(id, steps)
        if response is not None:
            self.out.write_message(response)

    def _run_fault(self, message: Json, setting: FaultSetting) -> None:
        """Handle a request as a good server does, then pass the response to the fault function."""
        response = self.server.handle(message, self.peer, self.out.write_message)
        if isinstance(response, Generator):
            final = self._run_steps(message["id"], response)
            if final is None:
                return
            response = final
        setting.mode.run(StdioFaultContext(self, setting, response))

    def _run_steps(self, id: Id, steps: Steps) -> Json | None:
        """Run the steps (waits, requests to the client) of a call and return its response.

        Return None if the client cancelled the call.
        """
        cancelled = self.cancel_events[id]
        step_result: Json | None = None
        try:
            while True:
                step = steps.send(step_result)
                step_result = self._run_step(step, cancelled)
                if cancelled.is_set():
                    steps.close()
                    self.server.stats.cancelled.append(id)
                    return None
        except StopIteration as end:
            response: Json = end.value
            return response

    def _run_step(self, step: Wait | ServerRequest, cancelled: threading.Event) -> Json | None:
        if not isinstance(step, ServerRequest):
            cancelled.wait(step.seconds)
            return None
        pending = self.send_request(step.method, step.params)
        for _ in range(_CLIENT_TIMEOUT_S * 20):
            if pending.received.wait(0.05) or cancelled.is_set():
                break
        return pending.response or {"error": {"code": 0, "message": "the client did not respond"}}

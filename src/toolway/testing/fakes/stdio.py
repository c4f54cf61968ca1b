"""The fake server on stdin and stdout: plain blocking code, and a thread for each call that waits."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Generator

from toolway.testing.fakes.call import Ask, Peer
from toolway.testing.fakes.wire import (
    RpcError,
    Unanswered,
    cancelled_id,
    encode,
    failure,
    object_of,
    parsed,
    request,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from toolway.testing.fakes.call import Steps, Wait
    from toolway.testing.fakes.modes import Modes, Setting
    from toolway.testing.fakes.server import Server
    from toolway.testing.fakes.wire import Id, Json

_PATIENCE = 60  # seconds for the client's answer


class Output:
    """stdout, whole lines at a time whichever thread writes. Once nobody reads, it writes no more."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._muted = False

    def message(self, message: Json) -> None:
        self.line(encode(message))

    def line(self, data: bytes) -> None:
        self.raw(data + b"\n")

    def raw(self, data: bytes) -> bool:
        """Write all of it; False where that cannot be."""
        with self._lock:
            rest = memoryview(data)
            try:
                while rest and not self._muted:
                    rest = rest[os.write(1, rest) :]
            except BrokenPipeError:
                self._muted = True
            return not self._muted

    def held(self) -> AbstractContextManager[bool]:
        """Keep all others from writing in between."""
        return self._lock

    def mute(self) -> None:
        self._muted = True

    def close(self) -> None:
        self._muted = True
        os.close(1)


class Slot:
    """A question to the client, and its response when it comes."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.reply: Json | None = None


class Hit:
    """A mode that strikes: what it may use to do harm."""

    def __init__(self, stdio: Stdio, setting: Setting, reply: Json | None = None) -> None:
        self._stdio = stdio
        self._has_reply = reply is not None
        self.reply: Json = reply or {"jsonrpc": "2.0", "id": 0}
        self.setting = setting
        self.server = stdio.server
        self.out = stdio.out

    def answer(self) -> None:
        """Answer as a good server would, where there is a question."""
        if self._has_reply:
            self.out.message(self.reply)

    def tell(self, **facts: Any) -> None:
        """Put facts into the answer."""
        result = object_of(self.reply.get("result"))
        result["structuredContent"] = {**object_of(result.get("structuredContent")), **facts}

    def ask(self, method: str, params: Json) -> Slot:
        return self._stdio.ask(method, params)

    def in_flight(self) -> list[Id]:
        return list(self._stdio.running)


class Pipe(Peer):
    """The one client there is."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out

    def send(self, message: Json) -> None:
        self._out.message(message)


class Stdio:
    """Reads requests, answers what can be answered at once, and starts threads for the rest."""

    def __init__(self, server: Server, modes: Modes) -> None:
        self.server = server
        self.modes = modes
        self.out = Output()
        self.peer = Pipe(self.out)
        self.running: dict[Id, threading.Event] = {}  # set: cancelled
        self._asked: dict[Id, Slot] = {}
        self._ids = itertools.count(1)

    def run(self) -> None:
        self._strike("start")
        for line in sys.stdin.buffer:
            self._take(line)
        self._strike("eof")

    def ask(self, method: str, params: Json) -> Slot:
        """Send a request to the client."""
        slot = Slot()
        id = f"ask-{next(self._ids)}"
        self._asked[id] = slot
        self.out.message(request(id, method, params))
        return slot

    def _strike(self, place: str) -> None:
        for setting in self.modes.at(place):
            setting.mode.run(Hit(self, setting))

    def _take(self, line: bytes) -> None:
        try:
            message = parsed(line)
        except RpcError as error:
            self.out.message(failure(None, error))
            return
        if "method" not in message:
            self._answered(message)
        else:
            self.server.stats.count(message["method"])
            (self._requested if "id" in message else self._notified)(message)

    def _answered(self, message: Json) -> None:
        slot = self._asked.get(message.get("id", ""))
        if slot is not None and not slot.come.is_set():
            slot.reply = message
            slot.come.set()

    def _notified(self, message: Json) -> None:
        if message["method"] == "notifications/cancelled":
            cancelled = self.running.get(cancelled_id(message))
            if cancelled is not None:
                cancelled.set()

    def _requested(self, message: Json) -> None:
        try:
            setting = self.modes.struck(message)
            if setting is None:
                self._answer(message)
            else:
                self._start(message["id"], self._misbehave, message, setting, inline=setting.mode.inline)
        except RpcError as error:
            self.out.message(failure(message["id"], error))
        except Unanswered:
            pass

    def _answer(self, message: Json) -> None:
        outcome = self.server.handle(message, self.peer, self.out.message)
        if isinstance(outcome, Generator):
            self._start(message["id"], self._walk_and_answer, message["id"], outcome)
        else:
            self.out.message(outcome)

    def _start(self, id: Id, work: Callable[..., None], *arguments: Any, inline: bool = False) -> None:
        self.running[id] = threading.Event()
        if inline:
            self._work(id, work, *arguments)
        else:
            threading.Thread(target=self._work, args=(id, work, *arguments), daemon=True).start()

    def _work(self, id: Id, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Unanswered:
            pass
        finally:
            self.running.pop(id, None)

    def _walk_and_answer(self, id: Id, steps: Steps) -> None:
        reply = self._walk(id, steps)
        if reply is not None:
            self.out.message(reply)

    def _misbehave(self, message: Json, setting: Setting) -> None:
        """Do the work as a good server would, then hand its answer to the mode."""
        reply = self.server.handle(message, self.peer, self.out.message)
        if isinstance(reply, Generator):
            walked = self._walk(message["id"], reply)
            if walked is None:
                return
            reply = walked
        setting.mode.run(Hit(self, setting, reply))

    def _walk(self, id: Id, steps: Steps) -> Json | None:
        """Go through a call's steps to its response; None where it was cancelled on the way."""
        cancelled = self.running[id]
        given: Json | None = None
        try:
            while True:
                step = steps.send(given)
                given = self._take_step(step, cancelled)
                if cancelled.is_set():
                    steps.close()
                    self.server.stats.cancelled.append(id)
                    return None
        except StopIteration as end:
            reply: Json = end.value
            return reply

    def _take_step(self, step: Wait | Ask, cancelled: threading.Event) -> Json | None:
        if not isinstance(step, Ask):
            cancelled.wait(step.seconds)
            return None
        slot = self.ask(step.method, step.params)
        for _ in range(_PATIENCE * 20):
            if slot.come.wait(0.05) or cancelled.is_set():
                break
        return slot.reply or {"error": {"code": 0, "message": "the client did not answer"}}

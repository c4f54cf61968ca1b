"""Just enough of a stdio client to test the fake server with."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from toolway.testing import fake_server

Json = dict[str, Any]
ERAS = ("modern", "legacy")
PREFIX = "io.modelcontextprotocol/"
CAPABILITIES: Json = {"elicitation": {}, "sampling": {}, "roots": {}}
META = {PREFIX + "protocolVersion": "2026-07-28", PREFIX + "clientCapabilities": CAPABILITIES}
SOON = 30.0


class Client:
    """Just enough of a client: it writes lines, and a thread puts what it reads into a queue."""

    def __init__(self, entry: Json) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([entry["command"], *entry["args"]], stdin=pipe, stdout=pipe, stderr=pipe)
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.stderr: list[bytes] = []
        self.modern = True
        self._last = 0
        self._readers = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_stderr)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self.lines.put(line)
        self.lines.put(b"")

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.stderr.extend(stderr)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(SOON)
        with suppress(OSError):
            self.end_input()

    def write(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: Json | None = None) -> int:
        """Send a request, dressed for its era."""
        self._last += 1
        params = dict(params or {})
        if self.modern:
            params["_meta"] = {**META, **params.get("_meta", {})}
        self.write({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def send_call(self, tool: str, _meta: Json | None = None, **arguments: Any) -> int:
        params: Json = {"name": tool, "arguments": arguments}
        if _meta:
            params["_meta"] = _meta
        return self.send("tools/call", params)

    def line(self, seconds: float = SOON) -> bytes:
        """The next line; empty at the end."""
        return self.lines.get(timeout=seconds)

    def message(self) -> Json:
        message: Json = json.loads(self.line())
        return message

    def ask(self, method: str, params: Json | None = None) -> Json:
        """Send a request and read the next message, which must answer it."""
        id = self.send(method, params)
        message = self.message()
        assert message["id"] == id
        return message

    def call(self, tool: str, **arguments: Any) -> Json:
        self.send_call(tool, **arguments)
        result: Json = self.message()["result"]
        return result

    def shake_hands(self, version: str = "2025-11-25") -> Json:
        self.modern = False
        params = {"protocolVersion": version, "capabilities": CAPABILITIES, "clientInfo": {"name": "t", "version": "1"}}
        answer = self.ask("initialize", params)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        result: Json = answer["result"]
        return result

    def quiet(self, seconds: float = 0.2) -> bool:
        with suppress(queue.Empty):
            return not self.lines.get(timeout=seconds)
        return True

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def fake(*modes: str, era: str = "modern", met: bool = True, **options: Any) -> Iterator[Client]:
    """A client of a fake server; in the handshake era, after the handshake unless not yet `met`."""
    client = Client(fake_server(*modes, era=era, **options))
    client.modern = era != "legacy"
    try:
        if era == "legacy" and met:
            client.shake_hands()
        yield client
    finally:
        client.close()


def text(result: Json) -> str:
    said: str = result["content"][0]["text"]
    return said

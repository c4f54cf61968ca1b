"""An API made of its document: a real HTTP server that keeps what arrives and answers as the document says.

with Mock() as mock:
    mock.answer = Answer(200, "application/json", b"{}")
    ...
    arrived = mock.arrived.pop()
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import uvicorn

from tests.parts.openapi.expected_requests import Arrived


@dataclass(frozen=True)
class Answer:
    status: int = 200
    kind: str = ""
    body: bytes = b""


class Mock:
    """Another parser of HTTP than ours reads the requests, in its own thread."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.arrived: list[Arrived] = []
        options: Any = {"http": "h11", "interface": "asgi3", "lifespan": "off", "log_level": "error"}
        config = uvicorn.Config(self._app, host="127.0.0.1", port=0, **options)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="mock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < until and self._thread.is_alive(), "the mock does not start"
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(20)

    @property
    def origin(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        self.arrived.append(Arrived(scope["method"], target, headers, body))
        answer = self.answer
        fields = [(b"content-type", answer.kind.encode())] if answer.kind else []
        fields.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})

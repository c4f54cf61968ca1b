"""Transport to a server process: JSON lines through its pipes.

The transport ends when the process ends, not when the pipe closes: a child of the server may hold the pipe open for
ever. Output on stdout that is not a message is kept with the last lines of stderr. Stderr is always drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from toolway.config.schema import Server
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import encode_cancellation
from toolway.types import Certainty, Era, Json
from toolway.upstream.process.spawner import Process, Spawner, SpawnError, build_environment
from toolway.upstream.transport import (
    Disconnect,
    InboundHandler,
    JSONRPCError,
    Request,
    TransportError,
    TransportInfo,
    TransportServices,
)
from toolway.upstream.transports.pending_requests import PendingRequests, parse_large
from toolway.upstream.transports.stdio_pipes import Frame, Framer, OversizedLine, PipeBroken, PipeFull, PipeWriter

READ_BYTES: Final = 64 * 1024  # bytes: the capacity of a pipe, and the limit of work in one turn of the event loop
EXIT_GRACE_S: Final = 0.2  # seconds after the process ended, to read its last output
LAST_OUTPUT_TIMEOUT_S: Final = 5.0  # seconds after the process ended, if its last output takes long to decode
EXIT_CODE_TIMEOUT_S: Final = 0.4  # seconds after a pipe broke, to learn the exit code, which says more
STDIN_CLOSE_TIMEOUT_S: Final = 2.0  # seconds after stdin was closed
SIGTERM_TIMEOUT_S: Final = 3.0  # seconds after SIGTERM
MAX_BAD_LINE_RATE: Final = (20, 60.0)  # invalid messages and seconds: at this rate the server is restarted
MIN_LINE_RATE: Final = (10 * 1024, 10.0)  # bytes and seconds: a message that grows slower than this has stalled
MAX_SERVER_REQUESTS: Final = 4096  # server requests in progress: the user behind each of them may take long

# A message after other text on the same line: only if its first key is one of JSON-RPC.
_EMBEDDED_MESSAGE: Final = re.compile(rb'\{"(?:jsonrpc"\s*:\s*"2\.0"|result"\s*:|id"\s*:)')


def create(server: Server, services: TransportServices) -> StdioTransport:
    """Return an unopened stdio transport, for the registry in `transports/__init__.py`."""
    return StdioTransport(server, services.spawner, services.environ)


class StdioTransport:
    """Transport to a server that runs as a child process, over its stdin and stdout."""

    def __init__(self, server: Server, spawner: Spawner, environ: Mapping[str, str]) -> None:
        assert server.command is not None
        self._server = server
        self._spawner = spawner
        self._env = build_environment(environ, server.env_policy, server.env)
        self._pending = PendingRequests()
        self._framer = Framer(server.limits.max_message_bytes)
        self._stderr_tail = StderrTail(server.limits.stderr_bytes)
        self._bad_lines: deque[float] = deque(maxlen=MAX_BAD_LINE_RATE[0])
        self._invalid_lines = 0
        self._received = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._decode_task: asyncio.Task[None] | None = None
        self._readers: dict[int, Callable[[bytes], None]] = {}
        self._process: Process | None = None
        self._writer: PipeWriter | None = None
        self._disconnected: asyncio.Future[Disconnect] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_bare = False
        self.is_owned: Callable[[], bool] | None = None  # returns False after this node has lost the ownership

    # -- open and close -----------------------------------------------------------------------------------------------

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        self._loop = asyncio.get_running_loop()
        self._disconnected = self._loop.create_future()
        command = self._server.command
        assert command is not None
        if self._server.cwd and not os.path.isdir(self._server.cwd):
            raise TransportError(
                f"the working directory {self._server.cwd} does not exist",
                Certainty.NOT_SENT,
                code="E-STDIO-CWD",
                hint="correct `cwd` in the server's entry",
            )
        try:
            self._process = await self._spawner.start([command, *self._server.args], self._env, self._server.cwd)
        except SpawnError as exc:
            raise _spawn_error(command, exc) from None
        self._writer = PipeWriter(
            self._process.stdin, self._server.timeout.write, self._on_write_stuck, self._on_pipe_broken
        )
        self._writer.may_write = self.is_owned
        self._start_reading(self._process.stdout, self._on_stdout)
        self._start_reading(self._process.stderr, self._stderr_tail.feed)
        self._process.exited.add_done_callback(self._on_exit)

    async def wait_closed(self) -> Disconnect:
        assert self._disconnected is not None
        return await asyncio.shield(self._disconnected)

    async def close(self) -> None:
        """Close stdin, wait, send SIGTERM to the process group, wait, then kill; about 6 s at most."""
        process, self._process = self._process, None
        if process is None:
            return
        self._disconnect(Disconnect("closed by us", "E-CLOSED"))
        assert self._writer is not None
        self._writer.close()
        try:
            await process.stop(STDIN_CLOSE_TIMEOUT_S, SIGTERM_TIMEOUT_S)
        finally:
            if not process.exited.done():
                process.kill_tree()
            self._stop_reading(process.stdout)
            self._stop_reading(process.stderr)
            for task in tuple(self._tasks):
                task.cancel()

    def set_protocol(self, era: Era, version: str) -> None:
        """Set the era. Messages of all eras are framed alike; responses of a bare server are read leniently."""
        self._is_bare = era == "bare"

    def reset_session(self) -> None:
        """Do nothing: a pipe has no session apart from its process."""

    def info(self) -> TransportInfo:
        return TransportInfo(
            pid=self._process.pid if self._process else None,
            stderr=self._stderr_tail.text(),
            unmatched_responses=self._pending.dropped,
            invalid_lines=self._invalid_lines,
        )

    def _disconnect(self, disconnect: Disconnect) -> None:
        """End the transport once: record the reason and fail all pending requests.

        Queued frames must not be written any more: their callers learn that nothing was sent, and may resend
        elsewhere.
        """
        if self._writer is not None:
            self._writer.close()
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(disconnect)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._pending.fail_all(disconnect.reason, disconnect.code, disconnect.hint)

    def _disconnect_after(self, disconnect: Disconnect, grace: float) -> None:
        """End the transport after `grace` seconds and after all received output is decoded.

        That output may contain a response. Decoding is awaited for at most `LAST_OUTPUT_TIMEOUT_S` seconds.
        """
        deadline = self._loop.time() + LAST_OUTPUT_TIMEOUT_S
        if grace:
            self._loop.call_later(grace, self._disconnect_when_read, disconnect, deadline)
        else:
            self._disconnect_when_read(disconnect, deadline)

    def _disconnect_when_read(self, disconnect: Disconnect, deadline: float) -> None:
        if self._decode_task is None:
            self._disconnect(disconnect)
            return

        def on_decoded(_: asyncio.Task[None]) -> None:  # then read the rest of the pipe
            self._loop.call_later(EXIT_GRACE_S, self._disconnect_when_read, disconnect, deadline)

        self._decode_task.add_done_callback(on_decoded)
        self._loop.call_at(deadline, self._disconnect, disconnect)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        self._check_connected()
        id_, result = self._pending.add(request)
        call_state = request.call_state
        call_state.phase = "send"
        call_state.raw_bytes = None
        frame: Frame | None = None
        try:
            frame = self._write(jsonrpc.encode_request(id_, request.method, request.params), call_state.mark_sent)
            return await result  # fails when the transport ends, so a blocked write cannot outlive it
        except asyncio.CancelledError:
            assert self._writer is not None
            if frame is not None and not self._writer.cancel(frame):
                call_state.mark_sent()
                if not request.silent_cancel:
                    self._notify_cancelled(id_)
            raise
        finally:
            self._pending.remove(id_)

    async def notify(self, method: str, params: Json) -> None:
        self._write(jsonrpc.encode_notification(method, params), None)

    def _check_connected(self) -> None:
        if self._disconnected is None or self._disconnected.done():
            raise TransportError("the connection to the server has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN")

    def _write(self, message: bytes, sent: Callable[[], None] | None) -> Frame:
        assert self._writer is not None
        try:
            return self._writer.write_nowait(message + b"\n", sent)
        except PipeFull:
            raise TransportError(
                "the server reads its input too slowly: the write queue is full",
                Certainty.NOT_SENT,
                code="E-STDIO-FULL",
            ) from None
        except PipeBroken:
            raise TransportError("the server's process has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN") from None

    def _notify_cancelled(self, id_: int) -> None:
        with contextlib.suppress(TransportError):
            self._write(encode_cancellation(id_), None)

    def _on_write_stuck(self) -> None:
        limit = self._server.timeout.write
        self._disconnect(Disconnect(f"the server stopped reading its input for {limit:g} s", "E-STDIO-STUCK"))

    def _on_pipe_broken(self) -> None:
        self._disconnect_after(Disconnect("the server closed its input", "E-STDIO-CLOSED"), EXIT_CODE_TIMEOUT_S)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _start_reading(self, fd: int, on_data: Callable[[bytes], None]) -> None:
        self._readers[fd] = on_data
        self._loop.add_reader(fd, self._on_readable, fd)

    def _on_readable(self, fd: int) -> None:
        try:
            chunk = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if chunk:
            self._readers[fd](chunk)
            return
        self._stop_reading(fd)
        if self._process is None or fd != self._process.stdout:
            return
        if self._process.exited.done():
            self._disconnect_after(self._exit_disconnect(), 0.0)
        else:
            self._disconnect_after(Disconnect("the server closed its output", "E-STDIO-CLOSED"), EXIT_CODE_TIMEOUT_S)

    def _stop_reading(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _on_exit(self, exited: asyncio.Future[int]) -> None:
        if self._process is None:
            return
        self._disconnect_after(self._exit_disconnect(), EXIT_GRACE_S if self._process.stdout in self._readers else 0.0)

    def _exit_disconnect(self) -> Disconnect:
        assert self._process is not None
        code = self._process.exited.result()
        return Disconnect(describe_exit(code), "E-STDIO-EXIT", exit_code=code)

    def _on_stdout(self, chunk: bytes) -> None:
        self._received += len(chunk)
        for line in self._framer.feed(chunk):
            if isinstance(line, OversizedLine):
                self._on_oversized(line)
            elif line.strip():
                self._on_line(line)
        if self._framer.skipped > 8 * self._server.limits.max_message_bytes:
            self._disconnect(Disconnect("the server sends a line that does not end", "E-FRAME-ENDLESS"))
        if (
            self._stall_timer is None
            and self._framer.has_partial
            and self._framer.partial_head.lstrip().startswith(b"{")
        ):
            self._stall_timer = self._loop.call_later(MIN_LINE_RATE[1], self._check_stalled, self._received)

    def _on_line(self, line: bytes) -> None:
        if jsonrpc.is_large(line):
            self._decode_task = self._start_task(self._on_large_line(line))
            return
        try:
            message = jsonrpc.parse_message(line)
        except jsonrpc.InvalidMessage as bad:
            self._on_bad_line(line, bad)
            return
        if message.kind == "result":
            self._pending.resolve(message, line)
        else:
            self._on_message(message)

    async def _on_large_line(self, line: bytes) -> None:
        """Decode a large line of the server's output in a thread, and process its message.

        Reading pauses meanwhile, so that only one line is decoded at a time.
        """
        stdout = self._process.stdout if self._process is not None else -1
        if stdout in self._readers:
            self._loop.remove_reader(stdout)
        try:
            self._on_message(await parse_large(line, self._pending.method_for(jsonrpc.extract_id(line))))
        except jsonrpc.InvalidMessage as bad:
            self._on_bad_line(line, bad)
        finally:
            if self._decode_task is asyncio.current_task():
                self._decode_task = None
            if stdout in self._readers:
                self._loop.add_reader(stdout, self._on_readable, stdout)

    def _on_message(self, message: jsonrpc.Message) -> None:
        if message.kind in ("result", "error"):
            self._pending.resolve(message)
        elif message.kind == "notification":
            self._inbound.on_notification(message.method, message.body)
        else:
            self._start_server_request(message)

    def _on_bad_line(self, line: bytes, bad: jsonrpc.InvalidMessage) -> None:
        if self._is_bare and not jsonrpc.is_large(line) and (message := jsonrpc.parse_bare_response(line)) is not None:
            self._pending.resolve(message)
            return
        embedded = _EMBEDDED_MESSAGE.search(line)
        if embedded is not None and embedded.start() > 0 and not line.startswith(b"\xef\xbb\xbf"):
            self._stderr_tail.feed(line[: embedded.start()] + b"\n")
            self._invalid_lines += 1
            self._on_line(line[embedded.start() :])  # the server printed text without a newline before the message
            return
        self._invalid_lines += 1
        self._stderr_tail.feed(line[:1000] + b"\n")
        looks_like_message = line.lstrip().startswith((b"{", b"\xef\xbb\xbf{"))
        reason = f"the server's response is invalid: {bad.reason}"
        if self._pending.reject(bad.id, reason, bad.code or "E-ANSWER", bad.hint):
            return
        if looks_like_message:
            self._count_bad_line()

    def _count_bad_line(self) -> None:
        now = self._loop.time()
        self._bad_lines.append(now)
        if len(self._bad_lines) == MAX_BAD_LINE_RATE[0] and now - self._bad_lines[0] < MAX_BAD_LINE_RATE[1]:
            self._disconnect(
                Disconnect(f"{MAX_BAD_LINE_RATE[0]} unreadable messages in {MAX_BAD_LINE_RATE[1]:g} s", "E-FRAME-BAD")
            )

    def _on_oversized(self, line: OversizedLine) -> None:
        limit = self._server.limits.max_message_bytes
        reason = f"the server sent a message over {limit} bytes"
        if not self._pending.reject(jsonrpc.extract_id(line.head), reason):
            self._disconnect(Disconnect(reason, "E-FRAME-LIMIT", hint="raise `limits.maxMessageBytes` of this server"))

    def _check_stalled(self, before: int) -> None:
        """End the transport if a partly received message has stalled while requests wait.

        `before` is the number of bytes received at the previous check.
        """
        self._stall_timer = None
        if not self._framer.partial_head or not self._pending:
            return
        if self._received - before < MIN_LINE_RATE[0]:
            self._disconnect(Disconnect("the server stopped in the middle of a message", "E-FRAME-HALF"))
        else:
            self._stall_timer = self._loop.call_later(MIN_LINE_RATE[1], self._check_stalled, self._received)

    # -- server requests ----------------------------------------------------------------------------------------------

    def _start_server_request(self, message: jsonrpc.Message) -> None:
        if len(self._tasks) >= MAX_SERVER_REQUESTS:
            self._try_write(jsonrpc.encode_error(message.id or 0, -32603, "too many requests at once"))
            return
        self._start_task(self._handle_server_request(message))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` in a task that `close` cancels."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _handle_server_request(self, message: jsonrpc.Message) -> None:
        assert message.id is not None
        try:
            result = await self._inbound.on_request(message.method, message.body)
            if result is not None:
                self._try_write(jsonrpc.encode_result(message.id, result))
        except JSONRPCError as exc:
            self._try_write(jsonrpc.encode_error(message.id, exc.code, exc.message, exc.data))

    def _try_write(self, message: bytes) -> None:
        with contextlib.suppress(TransportError):
            self._write(message, None)


class StderrTail:
    """Buffer that keeps only the last `limit` bytes of a server's stderr."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        if not self._limit:
            return
        chunk = chunk[-self._limit :]
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())
        if len(self._chunks) > 256:  # many small writes: keep the overhead bounded too
            self._chunks = deque([b"".join(self._chunks)[-self._limit :]])
            self._size = len(self._chunks[0])

    def text(self, lines: int = 20) -> str:
        """Return the last lines of the buffer as text."""
        whole = b"".join(self._chunks).decode("utf-8", "replace")
        return "\n".join(whole.rstrip().splitlines()[-lines:])


def describe_exit(code: int) -> str:
    """Return a sentence about the exit code of a server process; a negative code is a signal."""
    if code >= 0:
        return f"the server's process ended with exit code {code}"
    return f"the server's process was ended by signal {-code}"


def _spawn_error(command: str, exc: SpawnError) -> TransportError:
    if exc.code == "ENOENT":
        return TransportError(
            f"command not found: {command}",
            Certainty.NOT_SENT,
            code="E-STDIO-ENOENT",
            hint=f"install {command}, or give its full path as `command`",
        )
    if exc.code == "EACCES":
        return TransportError(
            f"not allowed to run {command}",
            Certainty.NOT_SENT,
            code="E-STDIO-EACCES",
            hint=f"make it executable: chmod +x {command}",
        )
    return TransportError(f"{command} could not be started: {exc}", Certainty.NOT_SENT, code="E-STDIO-SPAWN")

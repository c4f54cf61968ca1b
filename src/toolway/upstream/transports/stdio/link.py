"""A server that is a process: JSON lines through its pipes.

The end of the link is seen from the process, not from the pipe: a child of the server may hold the pipe open for ever.
Whatever comes on stdout that is no message goes to the tail that people are shown; stderr is always drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from toolway.config.spec import Server
from toolway.model import Certainty, Era, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Loss, Request, RpcError
from toolway.upstream.process import environment
from toolway.upstream.process.spawn import Process, Spawner, SpawnFailed
from toolway.upstream.transports.decoding import parse_heavy
from toolway.upstream.transports.outstanding import Outstanding
from toolway.upstream.transports.stdio.framing import Framer, Oversized
from toolway.upstream.transports.stdio.pipe_writer import Frame, PipeBroken, PipeFull, PipeWriter
from toolway.upstream.transports.stdio.tail import Tail

READ_SIZE: Final = 64 * 1024  # what a pipe holds; and no more work than that in one turn of the loop
EXIT_GRACE: Final = 0.2  # after the process ended, for what it wrote last
LAST_WORDS: Final = 5.0  # the same where what it wrote takes long to read
EXIT_NEWS: Final = 0.4  # after a pipe broke, for the news that the process ended, which says more
EOF_WAIT: Final = 2.0  # after stdin was closed
TERM_WAIT: Final = 3.0  # after SIGTERM
BAD_LINES: Final = (20, 60.0)  # so many spoiled messages in so many seconds and the link is restarted
SLOW_LINE: Final = (10 * 1024, 10.0)  # a message that grows slower than this has stopped
MAX_ASKS: Final = 4096  # requests of the server under way at once: a person behind each may take his time


class StdioLink:
    def __init__(self, server: Server, spawner: Spawner, environ: Mapping[str, str]) -> None:
        assert server.command is not None
        self._server = server
        self._spawner = spawner
        self._env = environment.build(environ, server.env_policy, server.env)
        self._outstanding = Outstanding()
        self._framer = Framer(server.limits.frame)
        self._tail = Tail(server.limits.stderr)
        self._bad_lines: deque[float] = deque(maxlen=BAD_LINES[0])
        self._noise = 0
        self._received = 0
        self._asks: set[asyncio.Task[None]] = set()
        self._decoding: asyncio.Task[None] | None = None
        self._readers: dict[int, Callable[[bytes], None]] = {}
        self._process: Process | None = None
        self._writer: PipeWriter | None = None
        self._loss: asyncio.Future[Loss] | None = None
        self._slow_check: asyncio.TimerHandle | None = None
        self.may_send: Callable[[], bool] | None = None  # whether the process is ours to talk to, where that can end

    # -- the life of the link -----------------------------------------------------------------------------------------

    async def open(self, inbound: Inbound) -> None:
        self._inbound = inbound
        self._loop = asyncio.get_running_loop()
        self._loss = self._loop.create_future()
        command = self._server.command
        assert command is not None
        if self._server.cwd and not os.path.isdir(self._server.cwd):
            raise Fault(
                f"the working directory {self._server.cwd} does not exist",
                Certainty.C0,
                code="E-STDIO-CWD",
                fix="correct `cwd` in the server's entry",
            )
        try:
            self._process = await self._spawner.start([command, *self._server.args], self._env, self._server.cwd)
        except SpawnFailed as exc:
            raise _spawn_fault(command, exc) from None
        self._writer = PipeWriter(self._process.stdin, self._server.timeout.write, self._stuck, self._broken)
        self._writer.may_write = self.may_send
        self._read_from(self._process.stdout, self._on_stdout)
        self._read_from(self._process.stderr, self._tail.feed)
        self._process.exited.add_done_callback(self._on_exit)

    async def wait_lost(self) -> Loss:
        assert self._loss is not None
        return await asyncio.shield(self._loss)

    async def close(self) -> None:
        """Close stdin, wait, ask the group to terminate, wait, kill; at most 6 s."""
        process, self._process = self._process, None
        if process is None:
            return
        self._lose(Loss("closed by us", "E-CLOSED"))
        assert self._writer is not None
        self._writer.close()
        try:
            await process.stop(EOF_WAIT, TERM_WAIT)
        finally:
            if not process.exited.done():
                process.end()
            self._stop_reading(process.stdout)
            self._stop_reading(process.stderr)
            for task in tuple(self._asks):
                task.cancel()

    def adopt(self, era: Era, version: str) -> None:
        """Nothing to do: on a pipe both eras are the same bytes."""

    def forget_session(self) -> None:
        """Nothing to do: a pipe has no session apart from its process."""

    def facts(self) -> LinkFacts:
        return LinkFacts(
            pid=self._process.pid if self._process else None,
            stderr=self._tail.text(),
            dropped=self._outstanding.dropped,
            noise=self._noise,
        )

    def _lose(self, loss: Loss) -> None:
        """The link is over: say why, once, and end all that waits on it. What has not left must not leave any more:
        whoever waits is told that it was not sent, and may send it elsewhere."""
        if self._writer is not None:
            self._writer.close()
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(loss)
        if self._slow_check is not None:
            self._slow_check.cancel()
        self._outstanding.fail_all(loss.reason, loss.code, loss.fix)

    def _end(self, loss: Loss, grace: float) -> None:
        """Lose the link after `grace`, but not before what has come is read: an answer may be among it."""
        latest = self._loop.time() + LAST_WORDS
        if grace:
            self._loop.call_later(grace, self._end_when_read, loss, latest)
        else:
            self._end_when_read(loss, latest)

    def _end_when_read(self, loss: Loss, latest: float) -> None:
        if self._decoding is None:
            self._lose(loss)
            return

        def read(_: asyncio.Task[None]) -> None:  # and then the rest of the pipe
            self._loop.call_later(EXIT_GRACE, self._end_when_read, loss, latest)

        self._decoding.add_done_callback(read)
        self._loop.call_at(latest, self._lose, loss)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        self._must_live()
        id_, answer = self._outstanding.add(request)
        attempt = request.attempt
        attempt.phase = "send"
        attempt.encoded = None
        frame: Frame | None = None
        try:
            frame = self._write(wire.request(id_, request.method, request.params), attempt.sent)
            return await answer  # a link that ends fails it, so a write that is stuck cannot outlive the link
        except asyncio.CancelledError:
            assert self._writer is not None
            if frame is not None and not self._writer.take_back(frame):
                attempt.sent()
                if not request.quiet:
                    self._tell_cancelled(id_)
            raise
        finally:
            self._outstanding.forget(id_)

    async def notify(self, method: str, params: Json) -> None:
        self._write(wire.notification(method, params), None)

    def _must_live(self) -> None:
        if self._loss is None or self._loss.done():
            raise Fault("the link to the server has ended", Certainty.C0, code="E-STDIO-BROKEN")

    def _write(self, object_: bytes, sent: Callable[[], None] | None) -> Frame:
        assert self._writer is not None
        try:
            return self._writer.write_nowait(object_ + b"\n", sent)
        except PipeFull:
            raise Fault(
                "the server reads its input too slowly: the line to it is full", Certainty.C0, code="E-STDIO-FULL"
            ) from None
        except PipeBroken:
            raise Fault("the server's process has ended", Certainty.C0, code="E-STDIO-BROKEN") from None

    def _tell_cancelled(self, id_: int) -> None:
        with contextlib.suppress(Fault):
            self._write(wire.notification("notifications/cancelled", {"requestId": id_}), None)

    def _stuck(self) -> None:
        limit = self._server.timeout.write
        self._lose(Loss(f"the server stopped reading its input for {limit:g} s", "E-STDIO-STUCK"))

    def _broken(self) -> None:
        self._end(Loss("the server closed its input", "E-STDIO-CLOSED"), EXIT_NEWS)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _read_from(self, fd: int, take: Callable[[bytes], None]) -> None:
        self._readers[fd] = take
        self._loop.add_reader(fd, self._readable, fd)

    def _readable(self, fd: int) -> None:
        try:
            chunk = os.read(fd, READ_SIZE)
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
            self._end(self._exit_loss(), 0.0)
        else:
            self._end(Loss("the server closed its output", "E-STDIO-CLOSED"), EXIT_NEWS)

    def _stop_reading(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _on_exit(self, exited: asyncio.Future[int]) -> None:
        if self._process is None:
            return
        self._end(self._exit_loss(), EXIT_GRACE if self._process.stdout in self._readers else 0.0)

    def _exit_loss(self) -> Loss:
        assert self._process is not None
        code = self._process.exited.result()
        return Loss(describe_exit(code), "E-STDIO-EXIT", exit_code=code)

    def _on_stdout(self, chunk: bytes) -> None:
        self._received += len(chunk)
        for line in self._framer.feed(chunk):
            if isinstance(line, Oversized):
                self._on_oversized(line)
            elif line.strip():
                self._on_line(line)
        if self._framer.skipped > 8 * self._server.limits.frame:
            self._lose(Loss("the server sends a line that does not end", "E-FRAME-ENDLESS"))
        if self._slow_check is None and self._framer.begun and self._framer.partial.lstrip().startswith(b"{"):
            self._slow_check = self._loop.call_later(SLOW_LINE[1], self._check_slow, self._received)

    def _on_line(self, line: bytes) -> None:
        if wire.is_heavy(line):
            self._decoding = self._own(self._on_heavy_line(line))
            return
        try:
            message = wire.parse(line)
        except wire.BadMessage as bad:
            self._on_bad_line(line, bad)
            return
        if message.kind == "result":
            self._outstanding.settle(message, line)
        else:
            self._on_message(message)

    async def _on_heavy_line(self, line: bytes) -> None:
        """Decode in a thread, and read no further meanwhile: one at a time, and nothing piles up."""
        stdout = self._process.stdout if self._process is not None else -1
        if stdout in self._readers:
            self._loop.remove_reader(stdout)
        try:
            self._on_message(await parse_heavy(line, self._outstanding.method(wire.readable_id(line))))
        except wire.BadMessage as bad:
            self._on_bad_line(line, bad)
        finally:
            if self._decoding is asyncio.current_task():
                self._decoding = None
            if stdout in self._readers:
                self._loop.add_reader(stdout, self._readable, stdout)

    def _on_message(self, message: wire.Message) -> None:
        if message.kind in ("result", "error"):
            self._outstanding.settle(message)
        elif message.kind == "notification":
            self._inbound.on_notification(message.method, message.body)
        else:
            self._answer_in_task(message)

    def _on_bad_line(self, line: bytes, bad: wire.BadMessage) -> None:
        hidden = _HIDDEN.search(line)
        if hidden is not None and hidden.start() > 0 and not line.startswith(b"\xef\xbb\xbf"):
            self._tail.feed(line[: hidden.start()] + b"\n")
            self._noise += 1
            self._on_line(line[hidden.start() :])  # a prefix printed without a newline
            return
        self._noise += 1
        self._tail.feed(line[:1000] + b"\n")
        looks_like_message = line.lstrip().startswith((b"{", b"\xef\xbb\xbf{"))
        reason = f"the server's answer cannot be read: {bad.reason}"
        if self._outstanding.spoil(bad.id, reason, bad.code or "E-ANSWER", bad.fix):
            return
        if looks_like_message:
            self._count_bad_line()

    def _count_bad_line(self) -> None:
        now = self._loop.time()
        self._bad_lines.append(now)
        if len(self._bad_lines) == BAD_LINES[0] and now - self._bad_lines[0] < BAD_LINES[1]:
            self._lose(Loss(f"{BAD_LINES[0]} unreadable messages in {BAD_LINES[1]:g} s", "E-FRAME-BAD"))

    def _on_oversized(self, line: Oversized) -> None:
        limit = self._server.limits.frame
        reason = f"the server sent a message over {limit} bytes"
        if not self._outstanding.spoil(wire.readable_id(line.head), reason):
            self._lose(Loss(reason, "E-FRAME-LIMIT", fix="raise `limits.frame` of this server"))

    def _check_slow(self, before: int) -> None:
        """A message was begun some time ago. If it hardly grew while somebody waits, it will not come."""
        self._slow_check = None
        if not self._framer.partial or not self._outstanding:
            return
        if self._received - before < SLOW_LINE[0]:
            self._lose(Loss("the server stopped in the middle of a message", "E-FRAME-HALF"))
        else:
            self._slow_check = self._loop.call_later(SLOW_LINE[1], self._check_slow, self._received)

    # -- requests of the server ---------------------------------------------------------------------------------------

    def _answer_in_task(self, message: wire.Message) -> None:
        if len(self._asks) >= MAX_ASKS:
            self._reply(wire.error(message.id or 0, -32603, "too many requests at once"))
            return
        self._own(self._answer(message))

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that ends with the link."""
        task = self._loop.create_task(work)
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)
        return task

    async def _answer(self, message: wire.Message) -> None:
        assert message.id is not None
        try:
            answer = await self._inbound.on_request(message.method, message.body)
            if answer is not None:
                self._reply(wire.result(message.id, answer))
        except RpcError as exc:
            self._reply(wire.error(message.id, exc.code, exc.message, exc.data))

    def _reply(self, object_: bytes) -> None:
        with contextlib.suppress(Fault):
            self._write(object_, None)


# A message behind text without a newline: only one that plainly says what it is.
_HIDDEN: Final = re.compile(rb'\{"(?:jsonrpc"\s*:\s*"2\.0"|result"\s*:|id"\s*:)')


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"the server's process ended with exit code {code}"
    return f"the server's process was ended by signal {-code}"


def _spawn_fault(command: str, exc: SpawnFailed) -> Fault:
    if exc.code == "ENOENT":
        return Fault(
            f"command not found: {command}",
            Certainty.C0,
            code="E-STDIO-ENOENT",
            fix=f"install {command}, or give its full path as `command`",
        )
    if exc.code == "EACCES":
        return Fault(
            f"not allowed to run {command}",
            Certainty.C0,
            code="E-STDIO-EACCES",
            fix=f"make it executable: chmod +x {command}",
        )
    return Fault(f"{command} could not be started: {exc}", Certainty.C0, code="E-STDIO-SPAWN")

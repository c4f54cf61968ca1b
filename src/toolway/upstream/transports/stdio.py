"""Transport to a server process: JSON lines through its pipes.

The transport ends when the process ends, not when the pipe closes: a child of the server may hold the pipe open
forever. Output on stdout that is not a message is kept with the last lines of stderr. Stderr is always drained.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from toolway.config.masking import build_masker
from toolway.config.schema import Server
from toolway.errors import PLATFORM_CODE, ToolwayError
from toolway.part_api import registry
from toolway.protocol import jsonrpc
from toolway.secrets.replacer import CUT, cut_bytes
from toolway.types import Certainty
from toolway.upstream.process.spawner import BATCH_CODE, SANDBOX_CODE, Process, Spawner, SpawnError, build_environment
from toolway.upstream.transport import Disconnect, InboundHandler, TransportError, TransportInfo, TransportServices
from toolway.upstream.transports.message_stream import MessageStream
from toolway.upstream.transports.stdio_pipes import Frame, Framer, OversizedLine, PipeBroken, PipeFull, PipeWriter

if TYPE_CHECKING:
    from toolway.upstream.process.host_proxy import HostProxy

EXIT_GRACE_S: Final = 0.2  # seconds after the process ended, to read its last output
EXIT_CODE_TIMEOUT_S: Final = 0.4  # seconds after a pipe broke, to learn the exit code, which says more
STDIN_CLOSE_TIMEOUT_S: Final = 2.0  # seconds after stdin was closed
UNANSWERED_CLOSE_TIMEOUT_S: Final = 0.2  # the same for a server that has never sent a message: it has nothing to finish
MAX_STDERR_LINES: Final = 20
MAX_NOISE_BYTES: Final = 1000  # bytes of a line of stdout that is not a message
SIGTERM_TIMEOUT_S: Final = 3.0  # seconds after SIGTERM

# A message after other text on the same line: only if its first key is one of JSON-RPC.
_EMBEDDED_MESSAGE: Final = re.compile(rb'\{"(?:jsonrpc"\s*:\s*"2\.0"|result"\s*:|id"\s*:)')


def create(server: Server, services: TransportServices) -> StdioTransport:
    """Return an unopened stdio transport, for the registry in `transports/__init__.py`."""
    return StdioTransport(server, services.spawner, services.environ)


class StdioTransport(MessageStream):
    """Transport to a server that runs as a child process, over its stdin and stdout."""

    def __init__(self, server: Server, spawner: Spawner, environ: Mapping[str, str]) -> None:
        assert server.command is not None
        super().__init__(server, "E-STDIO-BROKEN")
        self._spawner = spawner
        self._environ = environ
        self._env = build_environment(environ, server.env_policy, server.env)
        self._framer = Framer(server.limits.max_message_bytes)
        self._stderr_tail = StderrTail(server.limits.stderr_bytes)
        self._mask: Callable[[str], str] | None = None  # hides the values of `env`; built when there is any stderr
        self._shown_stderr = ("", "")  # the last one, as it is and masked
        self._process: Process | None = None
        self._writer: PipeWriter | None = None
        self._proxy: HostProxy | None = None  # for the hosts that its sandbox grants
        self.is_owned: Callable[[], bool] | None = None  # returns False after this node has lost the ownership

    # -- open and close -----------------------------------------------------------------------------------------------

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        command = self._server.command
        assert command is not None
        if self._server.cwd and not os.path.isdir(self._server.cwd):
            raise TransportError(
                f"the working directory {self._server.cwd} does not exist",
                Certainty.NOT_SENT,
                code="E-STDIO-CWD",
                hint="fix `cwd` in the server's entry",
            )
        server = self._server
        argv = await self._find_program([command, *server.args])
        try:
            if server.sandbox == "strict" and server.grants.hosts:
                from toolway.upstream.process.host_proxy import HostProxy  # loads an HTTP client

                self._proxy = HostProxy(server.grants.hosts, server.network_policy)
                await self._proxy.start()
            folder = self._proxy.folder if self._proxy is not None else ""
            self._process = await self._spawner.start(
                argv, self._env, server.cwd, server.sandbox, server.grants, folder
            )
        except (SpawnError, OSError) as exc:
            self._close_proxy()
            raise _spawn_error(command, exc) from None
        self._writer = PipeWriter(
            self._process.stdin, self._server.timeout.write, self._on_write_stuck, self._on_pipe_broken
        )
        self._writer.may_write = self.is_owned
        self._process.stdout.start(self._on_stdout)
        self._process.stderr.start(self._stderr_tail.feed)
        self._process.exited.add_done_callback(self._on_exit)

    async def _find_program(self, words: list[str]) -> list[str]:
        """Return the command line to start: `words`, or what a start guard runs instead, such as a locked package.

        Raises `TransportError` if a guard refuses to start it.
        """
        for name, guard in registry.start_guards().items():
            if not guard.concerns(words):
                continue
            required = name in self._spawner.required_guards
            try:
                found = await asyncio.to_thread(
                    guard.find_command, self._server, words, self._environ, is_required=required
                )
            except ToolwayError as exc:
                reason = f"{exc.message}: {exc.detail}" if exc.detail else exc.message
                raise TransportError(reason, Certainty.NOT_SENT, code=exc.code, hint=exc.hint) from None
            words = words if found is None else found
        return words

    async def close(self) -> None:
        """Close stdin, wait, send SIGTERM to the process group, wait, then kill; about 6 s at most."""
        process, self._process = self._process, None
        if process is None:
            return
        self._disconnect(Disconnect("closed by us", "E-CLOSED"))
        assert self._writer is not None
        self._writer.close()
        try:
            grace = STDIN_CLOSE_TIMEOUT_S if self._messages_received else UNANSWERED_CLOSE_TIMEOUT_S
            await process.stop(min(grace, STDIN_CLOSE_TIMEOUT_S), SIGTERM_TIMEOUT_S)
        finally:
            if not process.exited.done():
                process.kill_tree()
            self._close_proxy()
            process.stdout.close()
            process.stderr.close()
            self._cancel_tasks()

    def _close_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.close()

    def info(self) -> TransportInfo:
        return TransportInfo(
            pid=self._process.pid if self._process else None,
            stderr=self._masked_stderr(),
            unmatched_responses=self._pending.dropped,
            invalid_lines=self._invalid_messages,
            messages_sent=self._messages_sent,
            messages_received=self._messages_received,
        )

    def _masked_stderr(self) -> str:
        """Return the last lines of stderr, with secrets masked before lines are dropped."""
        text = self._stderr_tail.text()
        if not text:
            return ""
        if self._mask is None:
            self._mask = build_masker([self._server])
        if self._shown_stderr[0] != text:
            self._shown_stderr = (text, "\n".join(self._mask(text).splitlines()[-MAX_STDERR_LINES:]))
        return self._shown_stderr[1]

    def _close_stream(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _write(self, message: bytes, on_sent: Callable[[], None] | None) -> Frame:
        assert self._writer is not None
        try:
            return self._writer.write_nowait(message + b"\n", on_sent)
        except PipeFull:
            raise TransportError(
                "the server reads its input too slowly: the write queue is full",
                Certainty.NOT_SENT,
                code="E-STDIO-FULL",
            ) from None
        except PipeBroken:
            raise TransportError("the server's process has ended", Certainty.NOT_SENT, code="E-STDIO-BROKEN") from None

    def _cancel_write(self, frame: Frame) -> bool:
        assert self._writer is not None
        return self._writer.cancel(frame)

    def _on_write_stuck(self) -> None:
        limit = self._server.timeout.write
        self._disconnect(Disconnect(f"the server stopped reading its input for {limit:g} s", "E-STDIO-STUCK"))

    def _on_pipe_broken(self) -> None:
        self._disconnect_after(Disconnect("the server closed its input", "E-STDIO-CLOSED"), EXIT_CODE_TIMEOUT_S)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _on_stdout_end(self) -> None:
        if self._process is None:
            return
        if self._process.exited.done():
            self._disconnect_after(self._exit_disconnect(), 0.0)
        else:
            self._disconnect_after(Disconnect("the server closed its output", "E-STDIO-CLOSED"), EXIT_CODE_TIMEOUT_S)

    def _on_exit(self, exited: asyncio.Future[int]) -> None:
        if self._process is None:
            return
        self._disconnect_after(self._exit_disconnect(), EXIT_GRACE_S if self._process.stdout.is_open else 0.0)

    def _exit_disconnect(self) -> Disconnect:
        assert self._process is not None
        code = self._process.exited.result()
        return Disconnect(describe_exit(code), "E-STDIO-EXIT", exit_code=code)

    def _pause_reading(self) -> None:
        if self._process is not None:
            self._process.stdout.pause()

    def _resume_reading(self) -> None:
        if self._process is not None:
            self._process.stdout.resume()

    def _on_stdout(self, chunk: bytes) -> None:
        if not chunk:
            self._on_stdout_end()
            return
        for line in self._framer.feed(chunk):
            if isinstance(line, OversizedLine):
                self._on_oversized(line)
            elif line.strip():
                self._on_frame(line)
        if self._framer.skipped > 8 * self._server.limits.max_message_bytes:
            self._disconnect(Disconnect("the server sends a line that does not end", "E-FRAME-ENDLESS"))
        self._on_received(len(chunk))

    def _is_mid_frame(self) -> bool:
        return self._framer.has_partial and self._framer.partial_head.lstrip().startswith(b"{")

    def _on_bad_frame(self, frame: bytes, bad: jsonrpc.InvalidMessage) -> None:
        embedded = _EMBEDDED_MESSAGE.search(frame)
        if embedded is not None and embedded.start() > 0 and not frame.startswith(b"\xef\xbb\xbf"):
            self._stderr_tail.add_line(frame[: embedded.start()])
            self._invalid_messages += 1
            self._on_frame(frame[embedded.start() :])  # the server printed text without a newline before the message
            return
        self._stderr_tail.add_line(frame)
        super()._on_bad_frame(frame, bad)

    def _on_oversized(self, line: OversizedLine) -> None:
        limit = self._server.limits.max_message_bytes
        reason = f"the server sent a message over {limit} bytes"
        if not self._pending.reject(jsonrpc.extract_id(line.head), reason):
            self._disconnect(Disconnect(reason, "E-FRAME-LIMIT", hint="raise `limits.maxMessageBytes` for this server"))


class StderrTail:
    """Keeps the last `limit` bytes of a server's stderr, plus stdout lines that are not messages.

    A line of stdout never splits one of stderr: the halves of a secret would not be found.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()  # chunks of whole lines
        self._size = 0
        self._open = bytearray()  # of stderr: the line that has not ended yet
        self._is_cut = False  # True if the beginning was dropped

    def feed(self, chunk: bytes) -> None:
        """Add data from stderr, cut anywhere."""
        if not self._limit:
            return
        end = chunk.rfind(b"\n") + 1
        if end:
            self._add(bytes(self._open) + chunk[:end])
            self._open.clear()
        self._open += chunk[end:]
        if len(self._open) > 2 * self._limit:
            self._is_cut = True
            self._lines, self._size = deque(), 0
            del self._open[: -self._limit]

    def add_line(self, line: bytes) -> None:
        """Add a line of stdout, shortened to leave room for stderr."""
        if self._limit:
            self._add(cut_bytes(line, MAX_NOISE_BYTES).encode() + b"\n")

    def _add(self, lines: bytes) -> None:
        if len(lines) > self._limit:
            self._is_cut = True
            lines = lines[-self._limit :]
        self._lines.append(lines)
        self._size += len(lines)
        while self._size - len(self._lines[0]) >= self._limit:
            self._is_cut = True
            self._size -= len(self._lines.popleft())
        if len(self._lines) > 256:  # many small writes: keep the overhead bounded too
            joined = b"".join(self._lines)
            self._is_cut |= len(joined) > self._limit
            self._lines, self._size = deque([joined[-self._limit :]]), min(len(joined), self._limit)

    def text(self) -> str:
        """Return the end of the server's stderr, after `…` if the beginning was dropped."""
        kept = b"".join((*self._lines, self._open))
        mark = CUT if self._is_cut or len(kept) > self._limit else ""
        return f"{mark}{kept[-self._limit :].decode('utf-8', 'replace').rstrip()}"


def describe_exit(code: int) -> str:
    """Return a sentence about a server process's exit code; a negative code is a signal."""
    if code >= 0xC0000000:  # Windows ended it: the number of an exception
        return f"the server's process ended with status 0x{code:08X}"
    if code >= 0:
        return f"the server's process ended with exit code {code}"
    return f"the server's process was ended by signal {-code}"


def _spawn_error(command: str, exc: SpawnError | OSError) -> TransportError:
    code = exc.code if isinstance(exc, SpawnError) else ""
    if isinstance(exc, SpawnError) and code in (SANDBOX_CODE, PLATFORM_CODE):
        reason = f"{command} was not started: {exc}"
        return TransportError(reason, Certainty.NOT_SENT, code=code, hint=exc.hint)
    if code == BATCH_CODE:
        return TransportError(
            f"{command} was not started: {exc}",
            Certainty.NOT_SENT,
            code=BATCH_CODE,
            hint="set `command` to the program behind the batch file, such as node.exe with its script",
        )
    if code == "ENOENT":
        return TransportError(
            f"command not found: {command}",
            Certainty.NOT_SENT,
            code="E-STDIO-ENOENT",
            hint=f"install {command}, or set `command` to its full path",
        )
    if code == "EACCES":
        return TransportError(
            f"not allowed to run {command}",
            Certainty.NOT_SENT,
            code="E-STDIO-EACCES",
            hint=f"make it executable: chmod +x {command}",
        )
    return TransportError(f"{command} could not be started: {exc}", Certainty.NOT_SENT, code="E-STDIO-SPAWN")

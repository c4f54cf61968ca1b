"""Starts one server on trial: records the time and result of each step without judging.

A package runner such as npx first downloads the package. The start time of the server's process separates the download
time from the server's own time, because the runner starts it after the download. A runner gets more time than a normal
start, because an interrupted download starts over on the next start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from toolway.auth.encrypted_token_store import default_token_store
from toolway.auth.manager import AuthManager
from toolway.callbacks import FunctionCallbacks
from toolway.config.schema import DefaultSandbox, Sandbox, SandboxGrants, Server
from toolway.doctor import orphans
from toolway.protocol import jsonrpc
from toolway.protocol.constants import METHOD_NOT_FOUND
from toolway.protocol.sanitize import sanitize
from toolway.secrets.replacer import cut_bytes
from toolway.upstream import lists
from toolway.upstream.diagnosis import PACKAGE_RUNNERS
from toolway.upstream.negotiation import NegotiatedProtocol, may_be_legacy_sse
from toolway.upstream.process.pipes import Source
from toolway.upstream.process.sandbox_choice import choose_sandbox
from toolway.upstream.process.spawner import Process, Spawner
from toolway.upstream.session import Session
from toolway.upstream.start_policy import refusal_hint
from toolway.upstream.transport import Disconnect, JSONRPCError, Transport, TransportError
from toolway.upstream.transports import create_transport

RUNNER_TIMEOUT_S: Final = 180.0  # seconds; a package runner may have to download first
EXIT_WAIT_S: Final = 0.5  # seconds; a process exit explains more than the request that failed because of it


@dataclass(slots=True)
class TrialStart:
    """What was observed during a server's trial start: times, protocol, tools, failure and output.

    Times are in seconds since the begin of the start.
    """

    time_limit: float  # start timeout of the entry
    spawned_at: float | None = None
    first_byte_at: float | None = None
    fetched_at: float | None = None  # a package runner has the package and starts it
    agreed_at: float | None = None
    listed_at: float | None = None
    ended_at: float = 0.0
    agreement: NegotiatedProtocol | None = None
    tools: list[Any] = field(default_factory=list)
    list_problems: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()  # remarks of the transport about the tools
    failure: Disconnect | None = None
    status: int | None = None  # HTTP status, if that was the failure
    stderr: str = ""
    transport: str = ""  # if it differs from the entry's usual transport
    noise_lines: list[str] = field(default_factory=list)
    noise_count: int = 0
    ports: list[int] = field(default_factory=list)  # listened on by a process that does not answer
    exits_on_modern: bool = False  # it exits on a modern request, and works in the legacy era

    @property
    def is_late(self) -> bool:
        """Return True if the server listed its tools, but after its start timeout."""
        return self.listed_at is not None and self.listed_at > self.time_limit


def is_package_runner(server: Server) -> bool:
    return os.path.basename(server.command or "") in PACKAGE_RUNNERS


async def run_trial_start(
    name: str,
    server: Server,
    environ: Mapping[str, str],
    spawner: Spawner,
    *,
    required_guards: frozenset[str] = frozenset(),
    default_sandbox: DefaultSandbox = "auto",
) -> TrialStart:
    """Start a server, negotiate the MCP protocol version, list its tools, and stop it.

    If the server exits on a modern request (2026-07-28), it is started once more with the legacy protocol. As in the
    gateway, `required_guards` reject what they don't know, such as a package that isn't locked, and `default_sandbox`
    applies if the entry doesn't name a sandbox.
    """

    def tap() -> TappedSpawner:
        return TappedSpawner(spawner, required_guards, default_sandbox)

    trial = await _attempt_start(name, server, environ, tap(), legacy_first=False)
    # Some servers exit on an unknown request; the hub restarts them and begins with the legacy era.
    if trial.failure is not None and trial.failure.code == "E-STDIO-EXIT" and server.era == "auto":
        second = await _attempt_start(name, server, environ, tap(), legacy_first=True)
        if second.failure is None:
            second.exits_on_modern = True
            return second
    return trial


async def _attempt_start(
    name: str, server: Server, environ: Mapping[str, str], tap: TappedSpawner, *, legacy_first: bool
) -> TrialStart:
    broker = AuthManager(store=default_token_store(environ))  # uses the same logins as a hub
    link = create_transport(server, tap, environ, broker.authorizer(name, server))
    session = Session(name, link, FunctionCallbacks(None, None, None), lambda method, params: None)
    trial = TrialStart(server.timeout.start)
    clock = _Clock()

    def sse_transport(exc: TransportError | JSONRPCError) -> Transport | None:
        sse_server = replace(server, sse=True) if may_be_legacy_sse(server, exc) else None
        return (
            create_transport(sse_server, tap, environ, broker.authorizer(name, sse_server))
            if sse_server is not None
            else None
        )

    try:
        async with asyncio.timeout(
            max(trial.time_limit, RUNNER_TIMEOUT_S) if is_package_runner(server) else trial.time_limit
        ):
            await session.open(server.era, "legacy" if legacy_first else None, sse_transport)
            trial.agreed_at, trial.agreement = clock.now(), session.negotiated
            trial.fetched_at = _fetch_seconds(server, tap.stats)
            await _list_tools(session, trial, server.limits.max_tools)
            trial.listed_at = clock.now()
    except (TransportError, JSONRPCError, TimeoutError) as exc:
        trial.failure, trial.status = await _classify_failure(session, server, exc), getattr(exc, "status", None)
        if trial.failure.code == "E-START-TIMEOUT" and tap.stats.pid is not None:
            trial.fetched_at = trial.fetched_at or _fetch_seconds(server, tap.stats)
            trial.ports = orphans.listening_ports(tap.stats.pid)
    finally:
        trial.ended_at = clock.now()
        facts = session.transport.info()
        trial.stderr, trial.transport = facts.stderr, facts.transport
        await session.transport.close()
        await broker.close()
        await tap.close()
    _copy_times(trial, tap.stats, clock)
    return trial


class _Clock:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.started_at = self._loop.time()

    def now(self) -> float:
        return self._loop.time() - self.started_at


def _copy_times(trial: TrialStart, stats: StdoutStats, clock: _Clock) -> None:
    if stats.spawned_at is not None:
        trial.spawned_at = stats.spawned_at - clock.started_at
    if stats.first_byte_at is not None:
        trial.first_byte_at = stats.first_byte_at - clock.started_at
    trial.noise_lines, trial.noise_count = stats.noise_lines, stats.noise_count


def _fetch_seconds(server: Server, stats: StdoutStats) -> float | None:
    """Return the seconds that a package runner such as npx needed until it started the server.

    None if unknown. The end is the start of the runner's oldest living descendant: the server, or a shell that runs
    it. Installer processes have ended by now.
    """
    if stats.pid is None or not is_package_runner(server):
        return None
    children = orphans.descendants(stats.pid)
    return orphans.start_interval(stats.pid, children[0]) if children else None


async def _list_tools(session: Session, trial: TrialStart, max_tools: int) -> None:
    if not lists.is_list_offered("tools", session.protocol.capabilities):
        return
    try:
        trial.tools, trial.list_problems = await lists.fetch_all_pages(session.request, "tools", max_tools)
        trial.notes = session.transport.info().notes
    except JSONRPCError as exc:
        if exc.code != METHOD_NOT_FOUND:
            raise


async def _classify_failure(session: Session, server: Server, exc: Exception) -> Disconnect:
    """Convert the error of a failed server start into a `Disconnect`: reason, code and hint.

    If the process exits shortly after the error, its exit is the reason.
    """
    if isinstance(exc, TimeoutError):
        return Disconnect(f"no answer within {server.timeout.start:g} s", "E-START-TIMEOUT")
    if isinstance(exc, JSONRPCError):
        reason = f"the server returned error {exc.code}: {exc.message}"
        return Disconnect(reason, "E-START-REJECTED", hint=refusal_hint(exc))
    assert isinstance(exc, TransportError)
    if exc.code.startswith("E-STDIO-") and session.transport.info().pid is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_WAIT_S):
                return await session.transport.wait_closed()
    return Disconnect(exc.reason, exc.code, hint=exc.hint)


# -- tap on stdout -----------------------------------------------------------------------------------------------------


READ_BYTES: Final = 64 * 1024
MAX_NOISE_LINES: Final = 5  # the first line matters most
MAX_NOISE_LINE_BYTES: Final = 2000  # bytes kept of one noise line


@dataclass(slots=True)
class StdoutStats:
    """What was observed on a server's stdout: first byte, and lines that are not MCP messages.

    Times are of the event loop's clock.
    """

    pid: int | None = None
    spawned_at: float | None = None
    first_byte_at: float | None = None
    noise_lines: list[str] = field(default_factory=list)
    noise_count: int = 0  # lines that are not messages


class TappedSpawner(Spawner):
    """Spawner that starts a server's process and observes its stdout.

    The transport is the same as for calls, unchanged.
    """

    def __init__(
        self,
        spawner: Spawner,
        required_guards: frozenset[str] = frozenset(),
        default_sandbox: DefaultSandbox = "auto",
    ) -> None:
        super().__init__()
        self.default_sandbox = default_sandbox
        self.required_guards = required_guards | spawner.required_guards
        self.stats = StdoutStats()
        self._real_spawner = spawner

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        sandbox: Sandbox = "off",
        grants: SandboxGrants | None = None,
        proxy_folder: str = "",
    ) -> Process:
        if sandbox == "auto":
            sandbox = await asyncio.to_thread(choose_sandbox, sandbox, self.default_sandbox)
        process = await self._real_spawner.start(argv, env, cwd, sandbox, grants, proxy_folder)
        loop = asyncio.get_running_loop()
        self.stats.pid, self.stats.spawned_at = process.pid, loop.time()
        return msgspec.structs.replace(process, stdout=_TappedSource(loop, process.stdout, self.stats))

    async def close(self) -> None:
        """Do nothing: the process belongs to the real spawner."""


class _TappedSource:
    """A server's stdout that counts non-JSON-RPC lines before the transport gets them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, source: Source, stats: StdoutStats) -> None:
        self._loop = loop
        self._source = source
        self._stats = stats
        self._line = bytearray()
        self.pause, self.resume = source.pause, source.resume

    @property
    def is_open(self) -> bool:
        return self._source.is_open

    def start(self, on_data: Callable[[bytes], None]) -> None:
        def observe(data: bytes) -> None:
            if data:
                self._observe(data)
            on_data(data)

        self._source.start(observe)

    def _observe(self, data: bytes) -> None:
        if self._stats.first_byte_at is None:
            self._stats.first_byte_at = self._loop.time()
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._line += line
            self._count_noise(bytes(self._line))
            self._line.clear()
        self._line += rest

    def _count_noise(self, line: bytes) -> None:
        """Count a line of stdout as noise if it is not a valid JSON-RPC message."""
        if not line.strip() or jsonrpc.is_large(line):
            return
        try:
            jsonrpc.parse_message(line)
        except jsonrpc.InvalidMessage:
            self._stats.noise_count += 1
            if len(self._stats.noise_lines) < MAX_NOISE_LINES:
                self._stats.noise_lines.append(sanitize(cut_bytes(line, MAX_NOISE_LINE_BYTES), 200).strip())

    def close(self) -> None:
        self._source.close()

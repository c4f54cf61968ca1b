"""Everything is examined at the same time; what was found is told in the order in which it was asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from toolway.config.mask import masker
from toolway.config.spec import Server
from toolway.doctor import entry_checks, tool_checks, web_checks
from toolway.doctor.commands import look_up
from toolway.doctor.processes import Orphan, find_orphans
from toolway.doctor.report import Check, Report, Subject, split_fix
from toolway.doctor.runtimes import runtime
from toolway.doctor.start_checks import of_process, took
from toolway.doctor.starting import Start, start
from toolway.doctor.targets import Target
from toolway.doctor.twins import Twins
from toolway.doctor.values import is_reference, without_references
from toolway.doctor.web import Closer, look_closer
from toolway.errors import ToolwayError
from toolway.resolving import resolved
from toolway.secrets import is_secret_like
from toolway.upstream.process import environment
from toolway.upstream.process.spawn import Spawner

AT_ONCE = 8  # servers that are started at the same time: a busy machine makes every start look slow

Done = Callable[[str], None]


async def examine(
    targets: Sequence[Target],
    environ: Mapping[str, str],
    *,
    files: Sequence[Subject] = (),
    machine: bool = True,
    done: Done = lambda name: None,
) -> Report:
    """Examine every target. `files` were looked at before; `machine` looks for processes that are left over. `done` is
    told the name of each server that has been examined."""
    named = {_full_name(target): target.server for target in targets if target.server is not None}
    orphans = await asyncio.to_thread(find_orphans, named) if machine else []
    spawner = Spawner()
    gate = asyncio.Semaphore(AT_ONCE)
    twins = Twins(targets)

    async def one(target: Target) -> Subject:
        async with gate:
            try:
                return await _examined(target, environ, spawner, twins)
            except Exception as exc:  # a mistake of ours about one server must not hide what is known of the others
                what = f"Toolway failed to examine it: {exc!r}"
                check = Check("start", "fail", what, fix="please report this", code="E-INTERNAL")
                return Subject("server", target.name, (check,), way=target.way, source=target.file)
            finally:
                done(target.name)

    try:
        subjects = await asyncio.gather(*(one(target) for target in targets))
    finally:
        await spawner.close()
    mask = masker(map(_without_references, named.values()))
    return Report((*files, *subjects, *_machine(orphans))).masked(mask)


async def _examined(target: Target, environ: Mapping[str, str], spawner: Spawner, twins: Twins) -> Subject:
    checks = [*entry_checks.config(target, twins.before(target), twins.elsewhere(target))]
    server = target.server
    if server is not None and (not server.enabled or target.shadow):
        checks.append(Check("start", "skip", "not used" if target.shadow else "disabled in its entry"))
    elif server is not None:
        checks += entry_checks.env(target, time.time())
        later = [check async for check in _run(target, server, environ, spawner)]
        if not any(check.state == "fail" for check in later):
            # What is missing did no harm: the server is content without it.
            checks = [replace(check, state="warn") if _only_env(check) else check for check in checks]
        checks += later
    line = f":{target.line}" if target.line else ""
    transport = server.transport if server is not None else ""
    return Subject("server", target.name, tuple(checks), transport, target.way, f"{target.file}{line}")


def _only_env(check: Check) -> bool:
    return check.name == "env" and check.state == "fail"


async def _run(target: Target, server: Server, environ: Mapping[str, str], spawner: Spawner) -> AsyncIterator[Check]:
    if server.command is not None:
        path = environment.build(environ, server.env_policy, server.env).get("PATH", "")
        found = await look_up(server.command, path, environ, server.cwd)
        # The PATH of an entry that nobody approved must not choose what is run.
        runs = await runtime(server, path, environ) if found.path and not target.held else ""
        check = entry_checks.command(target, server, found, runs)
        yield check
        if check.state == "fail":
            yield Check("start", "skip", "not tried")
            return
    if target.held:
        fix = "look at it, and then let it be started with --project"
        yield Check("start", "skip", f"not started: it comes with the project; {fix}")
        return
    try:
        server = await resolved(server, environ, spawner)
    except ToolwayError as exc:
        yield Check("env", "fail", exc.what, exc.evidence, *split_fix(exc.fix), exc.code)
        yield Check("start", "skip", "not tried")
        return
    seen = await start(target.name, server, environ, spawner)
    speaks_mcp = server.url is not None and server.openapi is None
    doubtful = seen.failure is not None or seen.transport == "sse"
    closer = await look_closer(server) if speaks_mcp and doubtful else None
    for each in _judged(target.name, server, seen, closer):
        yield each


def _judged(name: str, server: Server, seen: Start, closer: Closer | None) -> Iterator[Check]:
    if server.command is not None:
        yield from of_process(server, seen)
    elif closer is not None and seen.agreement is None:
        yield web_checks.of_failure(server, seen, closer)
        yield Check("tools", "skip", "not reached")
        return
    elif server.openapi is not None:
        yield from tool_checks.api(seen)
        yield from tool_checks.tools(name, seen)
        return
    else:
        yield Check("connect", "ok", f"answered after {took(seen.agreed)}")
    if closer is not None and seen.transport == "sse":
        yield web_checks.deprecated(server, closer)
    yield tool_checks.handshake(server, seen)
    yield from tool_checks.tools(name, seen)


def _full_name(target: Target) -> str:
    """A name that no other entry has, in whatever file."""
    place = f" of {target.file}" if target.client or target.shadow else ""
    return f"{target.name}{place}"


def _without_references(server: Server) -> Server:
    """A variable that is not set is passed on as it is written, and that is no secret."""
    return replace(server, env=_plain(server.env), headers=_plain(server.headers))


def _plain(values: Mapping[str, str]) -> dict[str, str]:
    rests = {name: without_references(value) if is_reference(value) else value for name, value in values.items()}
    return {name: rest for name, rest in rests.items() if rest == values[name] or is_secret_like(name, rest)}


def _machine(orphans: Sequence[Orphan]) -> Iterator[Subject]:
    if not orphans:
        return
    checks = []
    for orphan in orphans:
        whose = f"of {orphan.server} " if orphan.server else ""
        checks.append(
            Check(
                "orphans",
                "warn",
                f"process {orphan.pid} {whose}is left over: whoever started it is gone, and nobody can talk to it",
                f"{orphan.command}\nit holds {orphan.megabytes} MB",
                "end it",
                f"kill {orphan.pid}",
                "E-DOCTOR-ORPHAN",
                orphan,
            )
        )
    yield Subject("machine", "this machine", tuple(checks))

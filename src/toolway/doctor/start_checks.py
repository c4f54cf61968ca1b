"""What the start of a process shows: did it come up, in which time, and was its stdout clean."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Final

from toolway.config.spec import Server
from toolway.doctor.entry_checks import entry_text
from toolway.doctor.processes import holder_of_port
from toolway.doctor.report import Check, split_fix
from toolway.doctor.starting import Start, is_runner
from toolway.protocol.shown import clean_text
from toolway.upstream.causes import Cause, likely_cause
from toolway.upstream.link import Loss

SHOWN: Final = 5  # lines of stderr
_IN_USE: Final = re.compile(r"([^\n]*)(?:EADDRINUSE|[Aa]ddress already in use)([^\n]*)")
_PORT: Final = re.compile(r"(?<![\d.])(\d{2,5})(?![\d.])")  # and no part of an address


def of_process(server: Server, seen: Start) -> Iterator[Check]:
    """The checks `start` and `stdout` of a server that is a process."""
    yield _start(server, seen)
    if seen.spawned is not None:
        yield _stdout(seen)


def _start(server: Server, seen: Start) -> Check:
    failure = seen.failure
    if failure is None:
        return _late(server, seen) if seen.late else Check("start", "ok", _times(server, seen))
    if failure.code == "E-START-TIMEOUT":
        return _silent(server, seen)
    if failure.exit_code is not None:
        return _ended(server, seen, failure)
    if seen.spawned is not None and not failure.code.startswith("E-STDIO"):
        return Check("start", "ok", _times(server, seen))  # it came up, and failed at something later
    cause = _cause(server, seen, failure)
    fix, copy = split_fix(cause.fix or failure.fix)
    return Check("start", "fail", cause.cause or failure.reason, tail(seen), fix, copy, failure.code)


def _times(server: Server, seen: Start) -> str:
    parts = [f"spawned in {took(seen.spawned)}"]
    if seen.first_byte is not None:
        parts.append(f"first byte after {took(seen.first_byte)}")
    text = ", ".join(parts)
    if seen.fetched is not None and seen.fetched >= 0.05:
        text += f" ({runner(server)} took {took(seen.fetched)} of it to get the package)"
    return text


def _late(server: Server, seen: Start) -> Check:
    """It came, but a hub would have given up by then."""
    assert seen.listed is not None
    own = f'"startTimeout": "{max(10, round(2 * seen.listed))}s"'
    fetched = seen.fetched or 0.0
    if fetched > seen.listed / 2 or (fetched and seen.listed - fetched <= seen.limit):
        return Check(
            "start",
            "fail",
            f"{runner(server)} took {took(fetched)} to download the package, and a start has {took(seen.limit)}",
            f"the server itself answered {took(seen.listed - fetched)} after that; the package is cached now",
            "start it again: the download is done; on other machines give the first start more time",
            own,
            "E-START-TIMEOUT",
        )
    what = f"the start took {took(seen.listed)}, and its entry allows {took(seen.limit)}"
    return Check("start", "fail", what, tail(seen), "give it more time", own, "E-START-TIMEOUT")


def _silent(server: Server, seen: Start) -> Check:
    """It runs, and nothing came in time."""
    if seen.ports:
        return _is_http(seen)
    if is_runner(server) and seen.fetched is None:
        return _downloads(server, seen)
    cause = likely_cause(server.command or "", None, seen.stderr, "") if seen.stderr.strip() else None
    what = f"the server does not answer the first message within {took(seen.limit)}"
    fix = "run it by hand and see what it waits for; many speak over stdio only with an argument such as stdio"
    if cause is not None:
        what, fix = f"{what}: {cause.cause}", cause.fix or fix
    said = f"it runs, and wrote {'nothing' if seen.first_byte is None else 'no answer'} to stdout"
    evidence = f"{said}\n{tail(seen)}" if seen.stderr.strip() else f"{said} and nothing to stderr"
    return Check("start", "fail", what, evidence, fix, by_hand(server), "E-START-TIMEOUT")


def _is_http(seen: Start) -> Check:
    return Check(
        "start",
        "fail",
        f"the server does not speak over stdio: it listens on port {seen.ports[0]}, as an HTTP server",
        tail(seen),
        "let it speak over stdio, often by an argument such as stdio; or start it yourself, and name its address",
        entry_text({"url": f"http://127.0.0.1:{seen.ports[0]}/mcp"}),
        "E-START-TIMEOUT",
    )


def _downloads(server: Server, seen: Start) -> Check:
    # Only of these it is known that what they run is a process below them.
    sure = sys.platform.startswith("linux") and runner(server) in ("npx", "uvx")
    what = f"{runner(server)} {'was' if sure else 'may be'} still downloading after {took(seen.ended)}"
    fix = "run it by hand until it is done"
    return Check("start", "fail", what, tail(seen), fix, by_hand(server), "E-START-TIMEOUT")


def _ended(server: Server, seen: Start, failure: Loss) -> Check:
    cause = _cause(server, seen, failure)
    how = f"exit code {failure.exit_code}" if (failure.exit_code or 0) >= 0 else f"signal {-(failure.exit_code or 0)}"
    last = next((line.strip() for line in reversed(seen.stderr.splitlines()) if line.strip()), "")
    why = cause.cause or (f"stderr: {last[:200]}" if last else "it said nothing")
    fix, copy = split_fix(cause.fix)
    port = _port(seen.stderr) if "port" in cause.cause else None
    holder = holder_of_port(port) if port is not None else None
    evidence = tail(seen)
    if holder is not None:
        evidence = f"process {holder[0]} has it: {clean_text(holder[1], 200)}\n{evidence}"
        fix, copy = "end that process, or choose another port", f"kill {holder[0]}"
    elif beside := _beside(server, cause):
        fix, copy = "it stands beside the command: put that folder on PATH", entry_text({"env": {"PATH": beside}})
    elif not fix:
        fix, copy = "run it by hand", by_hand(server)
    return Check("start", "fail", f"the server ended with {how}: {why}", evidence, fix, copy, "E-STDIO-EXIT")


def _port(stderr: str) -> int | None:
    """The port that is taken, as far as the server says: most name it after the words, some before."""
    said = _IN_USE.search(stderr)
    if said is None:
        return None
    before, after = said[1].replace("Errno 98", "").replace("Errno 48", ""), said[2]
    found = _PORT.findall(after) or _PORT.findall(before)
    return int(found[-1]) if found else None


def _beside(server: Server, cause: Cause) -> str:
    """The PATH with which a server finds the program that it lacks: npx of nvm needs the node of nvm."""
    lacks = re.match(r"the server needs the program ([\w.+-]+),", cause.cause)
    folder = os.path.dirname(server.command or "")
    found = lacks is not None and folder and os.access(os.path.join(folder, lacks[1]), os.X_OK)
    return f"{folder}:${{PATH}}" if found else ""


def _cause(server: Server, seen: Start, failure: Loss) -> Cause:
    found = likely_cause(server.command or "", failure.exit_code, seen.stderr, failure.code)
    return found if found is not None else Cause("", "")


def _stdout(seen: Start) -> Check:
    if not seen.noisy:
        return Check("stdout", "ok", "clean" if seen.first_byte is not None else "nothing came")
    count = f"{seen.noisy} line{'s' if seen.noisy > 1 else ''}"
    return Check(
        "stdout",
        "warn",
        f'stdout has {count} that {"are" if seen.noisy > 1 else "is"} no message: "{seen.noise[0]}"',
        "other clients may give up at the first of them",
        "let it log to stderr: console.error in Node.js, file=sys.stderr in Python; some have an option --quiet",
        code="E-FRAME-BAD",
    )


def tail(seen: Start) -> str:
    """The last lines of stderr, marked as such."""
    lines = [line.rstrip() for line in seen.stderr.splitlines() if line.strip()]
    return "\n".join(f"| {clean_text(line, 200)}" for line in lines[-SHOWN:])


def by_hand(server: Server) -> str:
    """The command line, to be copied into a terminal."""
    return shlex.join([server.command or "", *server.args])


def runner(server: Server) -> str:
    return (server.command or "").rpartition("/")[2]


def took(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"

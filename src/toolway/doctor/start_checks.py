"""Checks how a stdio server starts: exit, duration, and clean stdout."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from typing import Final

from toolway._os import proc
from toolway.config.schema import Server
from toolway.doctor.entry_checks import CheckTarget, format_entry_keys
from toolway.doctor.orphans import process_on_port
from toolway.doctor.report import Check, split_hint
from toolway.doctor.start_advice import refine_cause
from toolway.doctor.trial_start import TrialStart, is_package_runner
from toolway.errors import PLATFORM_CODE
from toolway.part_api import registry
from toolway.protocol.sanitize import sanitize
from toolway.secrets.replacer import cut_text
from toolway.upstream.diagnosis import Diagnosis, diagnose
from toolway.upstream.process.spawner import SANDBOX_CODE
from toolway.upstream.start_policy import sandbox_hint
from toolway.upstream.transport import Disconnect

MAX_STDERR_LINES: Final = 5  # lines
SLOW_START_S: Final = 10.0  # seconds; some clients wait no longer for a server
FLOOD_SHARE: Final = 0.9  # of the stderr that is kept: it was filled during the start
_PORT_IN_USE: Final = re.compile(r"([^\n]*)(?:EADDRINUSE|[Aa]ddress already in use)([^\n]*)")
_PORT_NUMBER: Final = re.compile(r"(?<![\d.])(\d{2,5})(?![\d.])")  # not part of an IP address


def check_process(target: CheckTarget, server: Server, trial: TrialStart) -> Iterator[Check]:
    """Yield the checks of a stdio server's process after its trial start: its start, its stdout, too much stderr.

    `server` is the server of `target`, with the values of its secrets.
    """
    yield _check_start(target, server, trial)
    if trial.spawned_at is not None:
        yield _check_stdout(trial)
    if trial.listed_at is not None and len(trial.stderr.encode()) >= FLOOD_SHARE * server.limits.stderr_bytes:
        yield _flooded(trial)


def _check_start(target: CheckTarget, server: Server, trial: TrialStart) -> Check:
    failure = trial.failure
    if failure is None:
        if trial.is_late:
            return _late_start(server, trial)
        own_seconds = (trial.listed_at or 0.0) - (trial.fetched_at or 0.0)
        return _slow_start(server, trial) if own_seconds >= SLOW_START_S else _started(server, trial)
    if failure.code == "E-START-TIMEOUT":
        return _no_answer(target, server, trial)
    if failure.exit_code is not None:
        return _exited(target, server, trial, failure)
    if failure.code == PLATFORM_CODE:
        return Check("start", "fail", failure.reason, "", *split_hint(failure.hint), PLATFORM_CODE)
    if failure.code == SANDBOX_CODE:
        return Check("start", "fail", failure.reason, "", *split_hint(sandbox_hint(target.name)), SANDBOX_CODE)
    for checks in registry.guard_checks().values():
        if (fix := checks.find_fix(failure.code, target.name)) is not None:
            return Check("start", "fail", failure.reason, "", *fix, failure.code)
    if trial.spawned_at is not None and not failure.code.startswith("E-STDIO"):
        return Check("start", "ok", _format_times(server, trial))  # it started; the failure is a later one
    cause = _find_cause(target, server, trial, failure)
    hint, copy = split_hint(cause.hint or failure.hint)
    return Check("start", "fail", cause.cause or failure.reason, stderr_tail(trial), hint, copy, failure.code)


def _started(server: Server, trial: TrialStart) -> Check:
    return Check("start", "ok", _format_times(server, trial))


def _slow_start(server: Server, trial: TrialStart) -> Check:
    """Return the warning about a server that may start too slowly for other clients."""
    return Check(
        "start",
        "warn",
        f"the start took {format_seconds(trial.listed_at)}: other clients may give up sooner",
        _format_times(server, trial),
        "let a gateway keep it running, so clients never wait",
        "toolway serve",
        "E-START-TIMEOUT",
    )


def _flooded(trial: TrialStart) -> Check:
    return Check(
        "stderr",
        "warn",
        f"the server wrote more than {len(trial.stderr.encode()) // 1000} kB to stderr during its start",
        stderr_tail(trial),
        "lower its log level, often by an argument or a variable such as LOG_LEVEL",
    )


def _format_times(server: Server, trial: TrialStart) -> str:
    parts = [f"spawned in {format_seconds(trial.spawned_at)}"]
    if trial.first_byte_at is not None:
        parts.append(f"first byte after {format_seconds(trial.first_byte_at)}")
    text = ", ".join(parts)
    if trial.fetched_at is not None and trial.fetched_at >= 0.05:
        text += f" ({runner_name(server)} took {format_seconds(trial.fetched_at)} of it to get the package)"
    return text


def _late_start(server: Server, trial: TrialStart) -> Check:
    """Return the failed check of a server that answered, but after its start timeout."""
    assert trial.listed_at is not None
    timeout_setting = f'"startTimeout": "{max(10, round(2 * trial.listed_at))}s"'
    fetched = trial.fetched_at or 0.0
    if fetched > trial.listed_at / 2 or (fetched and trial.listed_at - fetched <= trial.time_limit):
        return Check(
            "start",
            "warn",  # the next start has the package
            f"{runner_name(server)} took {format_seconds(fetched)} to download the package; "
            f"the start timeout is {format_seconds(trial.time_limit)}",
            f"the server itself answered {format_seconds(trial.listed_at - fetched)} after that; "
            "the package is cached now",
            "start it again: the download is done; on other machines raise the timeout of the first start",
            timeout_setting,
            "E-START-TIMEOUT",
        )
    message = (
        f"the start took {format_seconds(trial.listed_at)}; the start timeout is {format_seconds(trial.time_limit)}"
    )
    return Check(
        "start", "fail", message, stderr_tail(trial), "raise the start timeout", timeout_setting, "E-START-TIMEOUT"
    )


def _no_answer(target: CheckTarget, server: Server, trial: TrialStart) -> Check:
    """Return the failed check of a server process that runs, but did not answer in time."""
    if trial.ports:
        return _listens_on_port(trial)
    if is_package_runner(server) and trial.fetched_at is None:
        return _still_downloading(server, trial)
    cause = diagnose(server.command or "", None, trial.stderr, "") if trial.stderr.strip() else None
    refined = refine_cause(target, server, cause or Diagnosis("", ""), None)
    cause = refined if refined.cause else None
    message = f"the server does not answer the first message within {format_seconds(trial.time_limit)}"
    hint = "run it in a terminal to see its output; many servers use stdio only with an argument such as stdio"
    copy = shell_command(server)
    if cause is not None:
        message = f"{message}: {cause.cause}"
        hint, copy = split_hint(cause.hint) if cause.hint else (hint, copy)
    output_state = f"it runs, and wrote {'nothing' if trial.first_byte_at is None else 'no answer'} to stdout"
    detail = (
        f"{output_state}\n{stderr_tail(trial)}" if trial.stderr.strip() else f"{output_state} and nothing to stderr"
    )
    return Check("start", "fail", message, detail, hint, copy, "E-START-TIMEOUT")


def _listens_on_port(trial: TrialStart) -> Check:
    return Check(
        "start",
        "fail",
        f"the server does not use stdio: it listens on port {trial.ports[0]}, like an HTTP server",
        stderr_tail(trial),
        "switch it to stdio, often by an argument such as stdio; or start it yourself, and configure its URL",
        format_entry_keys({"url": f"http://127.0.0.1:{trial.ports[0]}/mcp"}),
        "E-START-TIMEOUT",
    )


def _still_downloading(server: Server, trial: TrialStart) -> Check:
    # Only of these runners is it known that they start the server as a child process, which is not there yet.
    certain = proc.IS_COMPLETE and runner_name(server) in ("npx", "uvx")
    verb = "was" if certain else "may be"
    message = f"{runner_name(server)} {verb} still downloading after {format_seconds(trial.ended_at)}"
    hint = "run it in a terminal until the download is done"
    return Check("start", "fail", message, stderr_tail(trial), hint, shell_command(server), "E-START-TIMEOUT")


def _exited(target: CheckTarget, server: Server, trial: TrialStart, failure: Disconnect) -> Check:
    cause = _find_cause(target, server, trial, failure)
    exit_status = (
        f"exit code {failure.exit_code}" if (failure.exit_code or 0) >= 0 else f"signal {-(failure.exit_code or 0)}"
    )
    last = next((line.strip() for line in reversed(trial.stderr.splitlines()) if line.strip()), "")
    reason = cause.cause or (f"stderr: {cut_text(last, 200)}" if last else "it wrote nothing to stderr")
    hint, copy = split_hint(cause.hint)
    port = _port_in_message(trial.stderr) if "port" in cause.cause else None
    holder = process_on_port(port) if port is not None else None
    detail = stderr_tail(trial)
    if holder is not None:
        detail = f"process {holder[0]} has it: {sanitize(holder[1], 200)}\n{detail}"
        hint, copy = "stop that process, or pick another port", f"kill {holder[0]}"
    elif path := _path_with_command_folder(server, cause):
        hint, copy = (
            "it is in the command's folder: put that folder on PATH",
            format_entry_keys({"env": {"PATH": path}}),
        )
    elif not hint:
        hint, copy = "run it in a terminal", shell_command(server)
    return Check("start", "fail", f"the server ended with {exit_status}: {reason}", detail, hint, copy, "E-STDIO-EXIT")


def _port_in_message(stderr: str) -> int | None:
    """Return the port in an "address already in use" message on stderr; None if there is none.

    Most servers write the port after these words.
    """
    match = _PORT_IN_USE.search(stderr)
    if match is None:
        return None
    before, after = match[1].replace("Errno 98", "").replace("Errno 48", ""), match[2]
    found = _PORT_NUMBER.findall(after) or _PORT_NUMBER.findall(before)
    return int(found[-1]) if found else None


def _path_with_command_folder(server: Server, cause: Diagnosis) -> str:
    """Return a PATH with the folder of the command, if that has the missing program.

    Return "" otherwise. Example: npx of nvm needs the node of nvm.
    """
    missing = re.match(r"the server needs the program ([\w.+-]+),", cause.cause)
    folder = os.path.dirname(server.command or "")
    found = missing is not None and folder and os.access(os.path.join(folder, missing[1]), os.X_OK)
    return f"{folder}:${{PATH}}" if found else ""


def _find_cause(target: CheckTarget, server: Server, trial: TrialStart, failure: Disconnect) -> Diagnosis:
    found = diagnose(server.command or "", failure.exit_code, trial.stderr, failure.code) or Diagnosis("", "")
    return refine_cause(target, server, found, failure.exit_code if failure.exit_code is not None else -1)


def _check_stdout(trial: TrialStart) -> Check:
    if not trial.noise_count:
        return Check("stdout", "ok", "clean" if trial.first_byte_at is not None else "no output")
    count = f"{trial.noise_count} line{'s' if trial.noise_count > 1 else ''}"
    return Check(
        "stdout",
        "warn",
        f'stdout has {count} that {"are" if trial.noise_count > 1 else "is"} not JSON-RPC: "{trial.noise_lines[0]}"',
        "other clients may disconnect at the first one",
        "log to stderr instead: console.error in Node.js, file=sys.stderr in Python; some servers have --quiet",
        code="E-FRAME-BAD",
    )


def stderr_tail(trial: TrialStart) -> str:
    """Return the last lines that the server wrote to stderr, each prefixed with `|`."""
    lines = [line.rstrip() for line in trial.stderr.splitlines() if line.strip()]
    return "\n".join(f"| {sanitize(line, 200)}" for line in lines[-MAX_STDERR_LINES:])


def shell_command(server: Server) -> str:
    """Return the server's command line, quoted for use in a shell."""
    return shlex.join([server.command or "", *server.args])


def runner_name(server: Server) -> str:
    return (server.command or "").rpartition("/")[2]


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"

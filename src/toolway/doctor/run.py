"""Runs all doctor checks of all config entries, in parallel, into one report."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import cast

from toolway._os import support
from toolway.config.locations import is_outside, own_folders, profile_folders
from toolway.config.masking import build_masker
from toolway.config.schema import Server
from toolway.doctor import entry_checks, http_checks, tool_checks
from toolway.doctor.command_lookup import detect_runtime, find_command
from toolway.doctor.entry_checks import CheckTarget, has_reference, strip_references
from toolway.doctor.http_checks import Probes, probe_server
from toolway.doctor.orphans import Orphan, find_orphans
from toolway.doctor.report import Check, Report, SubjectReport, split_hint
from toolway.doctor.start_advice import script_problem
from toolway.doctor.start_checks import check_process, format_seconds
from toolway.doctor.trial_start import TrialStart, run_trial_start
from toolway.errors import ToolwayError
from toolway.hub.secret_resolution import resolve_secrets
from toolway.part_api import registry
from toolway.search.tokens import search_advice
from toolway.secrets import looks_like_secret
from toolway.upstream.process.sandbox_choice import choose_sandbox
from toolway.upstream.process.spawner import Spawner, build_environment

MAX_PARALLEL_STARTS = 8  # servers started in parallel: a busy machine makes every start seem slow
OnChecked = Callable[[str], None]


async def run_checks(
    targets: Sequence[CheckTarget],
    environ: Mapping[str, str],
    *,
    files: Sequence[SubjectReport] = (),
    check_machine: bool = True,
    on_checked: OnChecked = lambda name: None,
) -> Report:
    """Check every config entry, starting its server once, and return the report.

    Secrets in the report are masked. `files` are the results of the file checks. `check_machine` also searches for
    leftover server processes. `on_checked` is called with the name of each checked server.
    """
    named = {_unique_name(target): target.server for target in targets if target.server is not None}
    orphans = await asyncio.to_thread(find_orphans, named) if check_machine else []
    spawner = Spawner(own_folders=own_folders(environ))
    slots = asyncio.Semaphore(MAX_PARALLEL_STARTS)
    duplicates = DuplicateEntries(targets)
    costs: list[tuple[int, int]] = []  # (tools, tokens) of each started server in our own files

    async def check_one(target: CheckTarget) -> SubjectReport:
        async with slots:
            try:
                return await _check_target(target, environ, spawner, duplicates, costs)
            except Exception as exc:  # our own bug with one server must not hide the results of the other servers
                message = f"internal error while checking this server: {exc!r}"
                check = Check("start", "fail", message, hint="please report this", code="E-INTERNAL")
                return SubjectReport("server", target.name, (check,), location=target.endpoint, source=target.file)
            finally:
                on_checked(target.name)

    try:
        subjects = await asyncio.gather(*(check_one(target) for target in targets))
    finally:
        await spawner.close()
    mask = build_masker(map(_strip_server_references, named.values()), named.keys())
    folders = _check_folders(map(os.path.realpath, own_folders(environ)), environ) if check_machine else ()
    return Report((*files, *subjects, *_total_reports(costs), *_machine_reports(orphans, folders))).apply_mask(mask)


async def _check_target(
    target: CheckTarget,
    environ: Mapping[str, str],
    spawner: Spawner,
    duplicates: DuplicateEntries,
    costs: list[tuple[int, int]],
) -> SubjectReport:
    checks = [*entry_checks.check_entry(target, duplicates.earlier_in_file(target), duplicates.in_other_files(target))]
    server = target.server
    if server is not None and (not server.enabled or target.overridden_by):
        checks.append(Check("start", "skip", "not used" if target.overridden_by else "disabled in its entry"))
    elif server is not None:
        checks += entry_checks.check_env(target, time.time())
        reported = any(check.code == entry_checks.UNSET_VARIABLE_CODE for check in checks)
        start_checks = [
            check
            async for check in _check_start(target, server, environ, spawner, costs)
            if not reported or check.code != entry_checks.UNSET_VARIABLE_CODE
        ]
        if any(check.name == "start" and check.state == "ok" for check in start_checks):
            # The missing value did no harm: the server works without it.
            checks = [replace(check, state="warn") if _is_env_failure(check) else check for check in checks]
        checks += start_checks
    line = f":{target.line}" if target.line else ""
    transport = server.transport if server is not None else ""
    return SubjectReport("server", target.name, tuple(checks), transport, target.endpoint, f"{target.file}{line}")


def _is_env_failure(check: Check) -> bool:
    return check.name == "env" and check.state == "fail"


async def _check_start(
    target: CheckTarget,
    server: Server,
    environ: Mapping[str, str],
    spawner: Spawner,
    costs: list[tuple[int, int]],
) -> AsyncIterator[Check]:
    if server.command is not None:
        path = build_environment(environ, server.env_policy, server.env).get("PATH", "")
        found = await find_command(server.command, path, environ, server.cwd)
        # The PATH of an untrusted entry must not decide which program runs.
        runtime_version = await detect_runtime(server, path, environ) if found.path and not target.untrusted else ""
        check = entry_checks.check_command(target, server, found, runtime_version)
        if found.path is not None and (problem := script_problem(found.path)) is not None:
            check = Check("command", "fail", problem.cause, "", *split_hint(problem.hint), "E-STDIO-ENOENT")
        yield check
        if check.state == "fail":
            yield Check("start", "skip", "not tried")
            return
    if target.untrusted:
        hint = "review it, then run with --project to start it"
        yield Check("start", "skip", f"not started: it belongs to an untrusted project file; {hint}")
        return
    try:
        server = await resolve_secrets(server, environ, spawner)
    except ToolwayError as exc:
        yield Check("env", "fail", exc.message, exc.detail, *split_hint(exc.hint), exc.code)
        yield Check("start", "skip", "not tried")
        return
    trial = await run_trial_start(
        target.name,
        server,
        environ,
        spawner,
        required_guards=target.required_guards,
        default_sandbox=target.default_sandbox,
    )
    if trial.listed_at is not None and not target.client:
        costs.append(tool_checks.measure_tools(target.name, server, trial))
    is_mcp_url = server.http_url is not None and server.transport_settings is None
    needs_probes = trial.failure is not None or trial.transport == "sse"
    probes = await probe_server(server) if is_mcp_url and needs_probes else None
    for each in _judge_start(target, server, trial, probes):
        yield each
    if server.command is not None and trial.failure is not None:
        sandbox = await asyncio.to_thread(choose_sandbox, server.sandbox, target.default_sandbox)
        if sandbox == "guard":
            yield _guard_advice(server)


def _guard_advice(server: Server) -> Check:
    """Return what the sandbox hides, for a server that failed: its messages rarely mention it."""
    chosen = "by its entry" if server.sandbox == "guard" else "the default of this gateway"
    return Check(
        "sandbox",
        "warn",
        f"it ran in the sandbox guard, {chosen}",
        "hidden: keys and logins in the home folder, such as ~/.aws, ~/.kube, ~/.ssh and ~/.netrc",
        "pass a credential that it needs in `env`; or let this server run without a sandbox",
        '"sandbox": "off"',
    )


def _judge_start(target: CheckTarget, server: Server, trial: TrialStart, probes: Probes | None) -> Iterator[Check]:
    if server.command is not None:
        yield from check_process(target, server, trial)
    elif probes is not None and trial.agreement is None:
        yield http_checks.check_http_failure(target, server, trial, probes)
        yield Check("tools", "skip", "not reached")
        return
    elif (own_checks := _own_checks(server, trial)) is not None:
        yield from own_checks
        yield from tool_checks.check_tools(target.name, server, trial)
        return
    else:
        yield Check("connect", "ok", f"answered after {format_seconds(trial.agreed_at)}")
    if probes is not None and trial.transport == "sse":
        yield http_checks.check_deprecated_transport(server, probes)
    yield tool_checks.check_protocol(server, trial)
    yield from tool_checks.check_tools(target.name, server, trial)


def _own_checks(server: Server, trial: TrialStart) -> Iterator[Check] | None:
    """Return what the transport of a part, or of another distribution, says about a start; None if it says nothing."""
    is_core = server.transport_settings is None and not server.own_scheme
    found = registry.transport(server.transport) if not is_core else None
    if found is None or not found.start_check:
        return None
    module, _, function = found.start_check.partition(":")
    return cast(Iterator[Check], getattr(import_module(module), function)(trial))


def _unique_name(target: CheckTarget) -> str:
    """Return the name under which the report shows a server entry.

    The name includes the file of the entry if another file may have an entry of the same name.
    """
    suffix = f" of {target.file}" if target.client or target.overridden_by else ""
    return f"{target.name}{suffix}"


def _strip_server_references(server: Server) -> Server:
    """Return the server with references such as `${NAME}` removed from env and header values.

    Unset references are passed on literally and are not secret, so they must not be masked.
    """
    return replace(server, env=_strip_values(server.env), headers=_strip_values(server.headers))


def _strip_values(values: Mapping[str, str]) -> dict[str, str]:
    stripped = {name: strip_references(value) if has_reference(value) else value for name, value in values.items()}
    return {
        name: value_left
        for name, value_left in stripped.items()
        if value_left == values[name] or looks_like_secret(name, value_left)
    }


def _total_reports(costs: Sequence[tuple[int, int]]) -> Iterator[SubjectReport]:
    """Yield a report that suggests tool search, if all tools together cost many tokens."""
    advice = search_advice(sum(tools for tools, _ in costs), sum(tokens for _, tokens in costs))
    if advice and len(costs) > 1:
        hint = 'connect them with search, or set "search": true in a toolset'
        copy = "toolway connect CLIENT --search"
        yield SubjectReport("machine", "all servers", (Check("tokens", "ok", advice, "", hint, copy, "E-LINT-MANY"),))


def _machine_reports(orphans: Sequence[Orphan], folders: Iterable[Check]) -> Iterator[SubjectReport]:
    checks = [*folders]
    for orphan in orphans:
        server_part = f"of {orphan.server} " if orphan.server else ""
        checks.append(
            Check(
                "orphans",
                "warn",
                f"process {orphan.pid} {server_part}is left over: "
                "its parent is gone, and no process can write to its stdin",
                f"{orphan.command}\nit uses {orphan.megabytes} MB",
                "end it",
                f"kill {orphan.pid}",
                "E-DOCTOR-ORPHAN",
                orphan,
            )
        )
    if checks:
        yield SubjectReport("machine", "this machine", tuple(checks))


def _check_folders(folders: Iterable[str], environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield a warning for each of Toolway's folders that other users of a Windows machine may read.

    `folders` are real paths. On other systems the files themselves are private.
    """
    profile = () if support.has_file_modes() else profile_folders(environ)
    for folder in sorted({each for each in folders if is_outside(each, profile)}):
        yield Check(
            "folder",
            "warn",
            f"{folder} is outside your profile: other users of this machine may read the keys and tokens in it",
            f"your profile: {profile[0]}",
            "unset XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME and TOOLWAY_STATE, or let nobody else read it",
            f'icacls "{folder}" /inheritance:r /grant:r "%USERNAME%:(OI)(CI)F"',
            "E-DOCTOR-FOLDER",
        )


# -- duplicate entries: a mistake within one file, a note across several files -----------------------------------------


class DuplicateEntries:
    """Finds config entries that start the same server: equal command and arguments, or URL.

    Within one file, entries whose environment, headers or folder differ are different servers, such as two accounts.
    """

    def __init__(self, targets: Sequence[CheckTarget]) -> None:
        self._by_identity: dict[str, list[CheckTarget]] = {}
        for target in targets:
            if identity := _server_identity(target):
                self._by_identity.setdefault(identity, []).append(target)

    def earlier_in_file(self, target: CheckTarget) -> str:
        """Return the name of an earlier entry in the target's file for the same server.

        Return "" if there is none.
        """
        here = [
            each
            for each in self._same_server(target)
            if each.file == target.file and _settings_of(each) == _settings_of(target)
        ]
        return here[0].name if here and here[0].name != target.name else ""

    def in_other_files(self, target: CheckTarget) -> list[str]:
        """Return the entries in other config files for the same server, like `cursor:gh`."""
        matches = [each for each in self._same_server(target) if each.file != target.file]
        return [f"{each.client or 'toolway'}:{each.name}" for each in matches]

    def _same_server(self, target: CheckTarget) -> list[CheckTarget]:
        return self._by_identity.get(_server_identity(target), [])


def _settings_of(target: CheckTarget) -> tuple[object, ...]:
    server = target.server
    return () if server is None else (server.env, server.headers, server.cwd, server.env_file)


def _server_identity(target: CheckTarget) -> str:
    """Return a string that is equal for entries with the same command and arguments, or URL.

    Return "" for an entry that is never started: unusable, disabled or overridden.
    """
    server = target.server
    if server is None or not server.enabled or target.overridden_by:
        return ""
    settings = server.transport_settings
    return json.dumps([server.command, server.args, server.url, settings and repr(settings)])

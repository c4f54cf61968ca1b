"""`toolway doctor`, `logs` and `ps`: problems and their causes, stderr output, processes."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from toolway._os import home_folder
from toolway._os.support import missing
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.file_changes import approve_own_edit
from toolway.cli.framework import CommandResult
from toolway.cli.gateway_client import find_local_gateway
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, format_duration
from toolway.cli.params import AnyServer, Headers, Refresh, ServersOrUrl, Wait
from toolway.cli.targets import (
    find_gateway,
    find_target,
    is_server_url,
    load_masked_config,
    server_from_url,
    server_name_from_url,
    url_target,
    wait_for_tools,
)
from toolway.config.editing.document import read_file_bytes
from toolway.config.exposure import find_rules
from toolway.config.scopes import ApprovalGate, load_config
from toolway.config.settings import AUDIT_LOG_KINDS
from toolway.doctor.client_checks import plan_all_clients, plan_client_files
from toolway.doctor.entry_checks import CheckTarget
from toolway.doctor.file_checks import CheckPlan, plan_own_files
from toolway.doctor.last_check import store_report
from toolway.doctor.lint import lint_tools
from toolway.doctor.orphans import find_orphans
from toolway.doctor.report import Check, EntryFix, FileFix, SubjectReport, render_report
from toolway.doctor.run import run_checks
from toolway.doctor.security import all_hold, judge, render_statements
from toolway.errors import ConfigError, ToolwayError, platform_error
from toolway.gateway.state_dir import StateDir
from toolway.middleware.resolve import require_server
from toolway.part_api import registry

if TYPE_CHECKING:
    from toolway.cli.cached_lists import CachedLists
    from toolway.cli.targets import HubApi, Target
    from toolway.doctor.lint import Finding, LintResult
    from toolway.doctor.orphans import Orphan
    from toolway.doctor.report import Report
    from toolway.types import Json
    from toolway.upstream.status import ServerStatus

REPORT_WIDTH = 80  # columns, if stdout is not a terminal
_FOLLOW_INTERVAL_S = 0.5  # seconds between two polls with --follow

Strict = Annotated[bool, typer.Option("--strict", help="With --tools: exit with 9 on warnings too.")]


def doctor(
    context: CommandContext,
    names: ServersOrUrl = None,
    everything: Annotated[bool, typer.Option("--all", help="Also check the files of all clients.")] = False,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="CLIENT", help="Check the files of this client.", show_default=False),
    ] = None,
    project: Annotated[bool, typer.Option("--project", help="Also start servers of project files.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Apply fixes that are safe or reversible.")] = False,
    access_token: Annotated[
        str | None,
        typer.Option(
            "--access-token",
            metavar="FILE",
            help="Check whether the gateway accepts this access token (- for stdin).",
            show_default=False,
        ),
    ] = None,
    tools: Annotated[bool, typer.Option("--tools", help="Check only the tool definitions, from cached lists.")] = False,
    security: Annotated[
        bool,
        typer.Option(
            "--security", help="Check the five security guarantees: logins, packages, tools, sandboxes, audit."
        ),
    ] = False,
    strict: Strict = False,
    refresh: Refresh = False,
    header: Headers = None,
    wait: Wait = None,
) -> CommandResult:
    """Start every server once and check command, variables, start, stdout, protocol and tools.

    Also check whether model providers accept the tools, and check the gateway's identity provider. The first line of
    the report names the cause. With a URL, check the server there; no config file is read.

    With --tools, exit with 9 if OpenAI, Anthropic or Gemini would reject a tool.

    With --security, no server is started. Exit with 9 if one of the five guarantees does not hold, or cannot be
    checked.
    """
    if security:
        given: dict[str, object] = {
            "NAME": names,
            "--all": everything,
            "--client": client,
            "--project": project,
            "--fix": fix,
        }
        given |= {"--access-token": access_token, "--tools": tools, "--strict": strict, "--refresh": refresh}
        given["--header"] = header
        if wrong := [option for option, value in given.items() if value]:
            raise UsageError(f"{wrong[0]} cannot be combined with --security", hint="toolway doctor --security")
        return run_security(context)
    file_checks = {"--all": everything, "--client": client, "--project": project, "--fix": fix}
    file_checks["--access-token"] = access_token
    tool_checks = {"--strict": strict, "--refresh": refresh, "--gateway": context.target_options.gateway}
    unsupported = [option for option, value in (file_checks if tools else tool_checks).items() if value]
    if unsupported:
        raise UsageError(
            f"{unsupported[0]} {'cannot be combined with' if tools else 'requires'} --tools",
            hint="show the usage: toolway doctor --help",
        )
    if tools:
        return run_lint(context, names or [], strict=strict, wait=wait, refresh=refresh, headers=header or ())
    return run_doctor(
        context,
        names or [],
        all_files=everything,
        client=client,
        project=project,
        fix=fix,
        headers=header or (),
        access_token=access_token,
    )


def logs(
    context: CommandContext,
    name: AnyServer = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="Number of lines per server.")] = 50,
    wait: Wait = None,
) -> CommandResult:
    """Read the stderr of servers from the running gateway. Without a gateway, the servers are started."""
    return run_logs(context, name, follow=follow, lines=lines, wait=wait)


def ps(
    context: CommandContext,
    orphans: Annotated[bool, typer.Option("--orphans", help="Show orphaned processes.")] = False,
    kill: Annotated[bool, typer.Option("--kill", help="Terminate orphaned processes.")] = False,
) -> CommandResult:
    return run_ps(context, orphans=orphans, kill=kill)


# -- doctor ------------------------------------------------------------------------------------------------------------


async def run_doctor(
    context: CommandContext,
    names: Sequence[str],
    *,
    all_files: bool,
    client: str | None,
    project: bool,
    fix: bool,
    headers: Sequence[str] = (),
    access_token: str | None = None,
) -> ExitCode:
    """Check the named servers, Toolway's own files, one client's files, or all, and print a report.

    With `fix`, automatic fixes are applied and the checks run again. If a URL is named, only the server there is
    checked, with the HTTP `headers`.
    """
    output, environ, directory = context.output, os.environ, Path.cwd()
    url = next((name for name in names if is_server_url(name)), "")
    if url and len(names) > 1:
        raise UsageError("a URL must be checked on its own", hint=f"toolway doctor {shlex.quote(url)}")
    if url and (all_files or client is not None or project):
        raise UsageError("a URL and files cannot be checked together", hint=f"run: toolway doctor {shlex.quote(url)}")
    if headers and not url:
        raise UsageError(
            "--header only works with a URL", hint="set the headers of configured servers in the config file"
        )

    def collect() -> CheckPlan:
        if url:
            return _plan_url(url, headers)
        if client is not None:
            found = plan_client_files(client, environ, directory, include_untrusted=project)
        elif all_files:
            found = _all_files(environ, directory, context.config_file(), project)
        else:
            found = _own_or_client_files(output, environ, directory, context.config_file(), project)
        return select_servers(found, names)

    plan = collect()
    report = await _run_checks(output, plan, environ)
    fixed = _apply_fixes(output, report) if fix else []
    if fixed:
        plan = collect()
        report = await _run_checks(output, plan, environ)
    store_report(StateDir.default(environ).folder, plan.targets, report)
    if not names and client is None:
        found = [
            *_check_exposure(context),
            *await _check_credentials(context, access_token),
            *_check_parts(context),
        ]
        report = replace(report, subjects=(*report.subjects, *found))
    elif access_token is not None:
        raise UsageError(
            "--access-token cannot be combined with servers or a client", hint="run: toolway doctor --access-token FILE"
        )
    if output.as_json:
        output.print_json({**report.to_json(), "fixed": fixed})
    else:
        _print_report(output, report, names, fixed)
    return exit_code_for_report(report)


async def _check_credentials(context: CommandContext, access_token: str | None) -> list[SubjectReport]:
    """Let a gateway's parts check their credential verifiers, and the given access token.

    Raises `UsageError` if a token is given, but nothing can verify it.
    """

    def read() -> str:
        try:
            return sys.stdin.read() if access_token == "-" else Path(access_token).read_text() if access_token else ""
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError("the file with the access token cannot be read", hint=str(exc)) from None

    try:
        loaded = load_config(os.environ, Path.cwd(), context.config_file())
    except ConfigError:
        loaded = None  # the report names the problem of the file
    given = read if access_token is not None else None
    return [each for part in registry.in_use() for each in await part.check_credentials(loaded, given)]


def _check_exposure(context: CommandContext) -> list[SubjectReport]:
    """Report a gateway's defaults, if its settings make it public."""
    try:
        loaded = load_config(os.environ, Path.cwd(), context.config_file())
    except ConfigError:
        return []  # the report names the problem of the file
    rules = find_rules(loaded.gateway)
    if not rules.public_reason:
        return []
    guards = "".join(
        f"{checks.title}: {'required' if name in rules.required_guards else 'optional'}; "
        for name, checks in registry.guard_checks().items()
    )
    sandbox = "guard, if bubblewrap works" if rules.default_sandbox == "guard-if-possible" else rules.default_sandbox
    defaults = f"changed definitions: {rules.pin_mode}; {guards}sandbox: {sandbox}"
    check = Check("public", "ok", f"the gateway counts as public: {rules.public_reason}", defaults)
    return [SubjectReport("machine", "gateway", (check,), location=str(loaded.file))]


def _check_parts(context: CommandContext) -> list[SubjectReport]:
    """Let the parts of a gateway check what is theirs, and name what comes from other distributions."""
    try:
        loaded = load_config(os.environ, Path.cwd(), context.config_file())
    except ConfigError:
        return []  # the report names the problem of the file
    found = [each for part in registry.in_use() for each in part.check(loaded.gateway, str(loaded.file))]
    for name, distribution in registry.foreign().items():
        detail = "it runs in the gateway, and sees every call and every secret"
        check = Check("part", "ok", f"the part {name} comes from another distribution: {distribution}", detail)
        found.append(SubjectReport("machine", f"part {name}", (check,), location=str(loaded.file)))
    for name, distribution in registry.foreign_transports().items():
        detail = "it runs in Toolway's process, and sees the secrets that its servers get"
        check = Check(
            "transport", "ok", f"the transport {name} comes from another distribution: {distribution}", detail
        )
        found.append(SubjectReport("machine", f"transport {name}", (check,), location=str(loaded.file)))
    audit = loaded.gateway.audit
    kind = audit.to if audit is not None and audit.to not in AUDIT_LOG_KINDS else ""
    for name, distribution in registry.foreign_audit_sinks(kind).items():
        detail = "it runs in the gateway's process, and gets every record of the audit log"
        check = Check("audit", "ok", f"the audit log {name} comes from another distribution: {distribution}", detail)
        found.append(SubjectReport("machine", f"audit log {name}", (check,), location=str(loaded.file)))
    return found


def _plan_url(url: str, headers: Sequence[str]) -> CheckPlan:
    """Return the plan for checking the server at `url`, which no config file names."""
    name, server = server_from_url(url, headers)
    return CheckPlan(targets=[CheckTarget(name, server, raw_name=name)])


def _own_or_client_files(
    output: Output, environ: Mapping[str, str], directory: Path, config: Path | None, project: bool
) -> CheckPlan:
    """Return the plan for checking the config files of Toolway, or of other clients if Toolway has none yet.

    Raises `ConfigError` if no client has a server either, or if a file cannot be used.
    """
    try:
        return plan_own_files(environ, directory, config, ApprovalGate.open(environ))
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
        client_files = plan_all_clients(environ, directory, include_untrusted=project)
        if not client_files.targets:
            raise
        output.info("no Toolway config yet, so checking your clients' files instead", "dim")
        return client_files


def _all_files(environ: Mapping[str, str], directory: Path, config: Path | None, project: bool) -> CheckPlan:
    """Return the plan for checking Toolway's own config files, if there are any, and those of all clients."""
    found = CheckPlan()
    try:
        found = plan_own_files(environ, directory, config, ApprovalGate.open(environ))
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
    client_files = plan_all_clients(environ, directory, include_untrusted=project)
    return CheckPlan([*found.files, *client_files.files], [*found.targets, *client_files.targets])


def select_servers(scene: CheckPlan, names: Sequence[str]) -> CheckPlan:
    """Reduce the check plan to the servers `names` and their files; unchanged without names.

    If none of them exists, it has only the broken files, one of which may name the servers. Raises `NotFound` if one
    does not exist and no file is broken.
    """
    if not names:
        return scene
    targets = [target for target in scene.targets if target.name in names or target.raw_name in names]
    broken = [file for file in scene.files if file.state == "fail"]
    known = {name for target in scene.targets for name in (target.name, target.raw_name)}
    for name in names if not broken else ():
        if name not in known:
            require_server({target.name: None for target in scene.targets}, name)
    files = [file for file in scene.files if file.source in {target.file for target in targets}]
    return replace(scene, files=files or broken, targets=targets)


async def _run_checks(output: Output, scene: CheckPlan, environ: Mapping[str, str]) -> Report:
    pending = {target.name for target in scene.targets}
    total = len(pending)
    with output.spinner("checking") as update:

        def on_checked(name: str) -> None:
            pending.discard(name)
            names = ", ".join(sorted(pending)[:5])
            update(f"checked {total - len(pending)} of {total}; waiting for {names}" if pending else "checked all")

        return await run_checks(scene.targets, environ, files=scene.files, on_checked=on_checked)


def _apply_fixes(output: Output, report: Report) -> list[str]:
    fixed = []
    for repair in report.auto_fixes:
        try:
            file = repair.path if isinstance(repair, EntryFix | FileFix) else None
            before = read_file_bytes(file) if file is not None else None
            fixed.append(repair.apply())
            if file is not None:
                approve_own_edit(file, before, read_file_bytes(file) or b"", keep_waiting=True)
        except ToolwayError as exc:
            output.print_error(exc)
    return fixed


def _print_report(output: Output, report: Report, names: Sequence[str], fixed: list[str]) -> None:
    width = min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else REPORT_WIDTH
    for text in fixed:
        output.info(f"fixed: {text}", "green")
    home = home_folder(os.environ)
    for line in render_report(
        report.with_tilde(home),
        width,
        verbose=output.verbose,
        rerun_command=shlex.join(["toolway", "doctor", *names]),
    ):
        output.print_line(line.text, line.style)


def exit_code_for_report(report: Report) -> ExitCode:
    """Return the exit code of `toolway doctor` for a report.

    0 no failure, 3 broken files or entries, 6 only credential failures, 4 no server usable, 8 some servers usable.
    """
    servers = [subject for subject in report.subjects if subject.kind == "server"]
    failed = [check for subject in report.subjects for check in subject.checks_in("fail")]
    if not failed:
        return ExitCode.OK
    if all(check.name in ("file", "config") for check in failed) and not any(map(_is_usable, servers)):
        return ExitCode.CONFIG
    if any(map(_is_usable, servers)):
        return ExitCode.PARTIAL
    return ExitCode.AUTH if all(check.name in ("auth", "env") for check in failed) else ExitCode.UNREACHABLE


def _is_usable(subject: SubjectReport) -> bool:
    return subject.state in ("ok", "warn")


# -- doctor --security -------------------------------------------------------------------------------------------------


async def run_security(context: CommandContext) -> ExitCode:
    """Print whether the five security guarantees hold for the gateway of this machine or of --gateway."""
    from toolway.serve.security_check import check_machine, collect_remote

    output, options = context.output, context.target_options
    gateway = await find_gateway(output, options)
    local = find_local_gateway(options) if options.gateway is not None else gateway
    if gateway is not None and (local is None or local.url != gateway.url):
        facts = await collect_remote(gateway)
        statements = judge(facts)
    else:
        with output.spinner("checking"):
            facts, statements = await check_machine(os.environ, Path.cwd(), context.config_file(), gateway)
    holds = all_hold(statements)
    if output.as_json:
        scope = {"checked": facts.checked, "not_checked": facts.not_checked}
        output.print_json({"holds": holds, "statements": [each.to_json() for each in statements], **scope})
    else:
        width = min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else REPORT_WIDTH
        for line in render_statements(facts, statements, width):
            output.print_line(line.text, line.style)
    return ExitCode.OK if holds else ExitCode.LINT


# -- doctor --tools ----------------------------------------------------------------------------------------------------


async def run_lint(
    context: CommandContext,
    names: Sequence[str],
    *,
    strict: bool,
    wait: float | None,
    refresh: bool,
    headers: Sequence[str] = (),
) -> ExitCode:
    """Print the lint findings for the tools of the named servers, of the server at a URL, or of all servers.

    Returns 9 if a model provider would reject a tool.
    """
    output = context.output
    if any(map(is_server_url, names)):
        if len(names) > 1:
            raise UsageError("a URL must be checked on its own", hint=f"toolway doctor --tools {shlex.quote(names[0])}")
        target, names = url_target(output, names[0], headers), [server_name_from_url(names[0])]
    else:
        target = await find_target(output, context.target_options)
    tools_by_server: dict[str, list[Json]] = {}
    selected: Sequence[str | None] = names or [None]
    for name in selected:
        tools_by_server |= await _collect_tools(output, target, name, wait, refresh)
    found = [lint_tools(server, tools) for server, tools in tools_by_server.items()]
    if output.as_json:
        output.print_json({"servers": [_lint_to_json(each) for each in found]})
    else:
        for each in found:
            _print_lint(output, each)
    severities = {finding.severity for each in found for finding in each.findings}
    return ExitCode.LINT if "error" in severities or (strict and severities) else ExitCode.OK


async def _collect_tools(
    output: Output, target: Target, name: str | None, wait: float | None, refresh: bool
) -> dict[str, list[Json]]:
    """Return the tool definitions by server, from the disk cache or from the started servers."""
    cached: CachedLists | None = target.cached(name)
    if cached is not None and not cached.uncached and not refresh:
        return {server: [tool.raw for tool in cached.catalog.tools(server)] for server in cached.cached_at}
    async with target.open(name) as servers:
        statuses = await wait_for_tools(servers, output, wait, name)
        for status in statuses:
            if status.state not in ("ready", "disabled") and not status.tools:
                output.info(f"{status.server}: {status.why}", "red")
        return {s.server: [t.raw for t in servers.known_tools(server=s.server)] for s in statuses if s.tools}


def _lint_to_json(found: LintResult) -> Json:
    return {
        "server": found.server,
        "tools": found.tools,
        "tokens": msgspec.to_builtins(found.cost),
        "findings": [asdict(finding) for finding in found.findings],
    }


def _print_lint(output: Output, found: LintResult) -> None:
    verdict = "no findings" if not found.findings else f"findings: {len(found.findings)}"
    tools = f"{found.tools} tool{'s' if found.tools != 1 else ''}"
    output.print_line(
        f"{found.server}: {tools}, about {found.cost.openai:,} tokens (OpenAI); {verdict}",
        "" if found.findings else "green",
    )
    for finding in found.findings:
        _print_finding(output, finding)


def _print_finding(output: Output, finding: Finding) -> None:
    mark, style = ("✗", "red") if finding.severity == "error" else ("!", "yellow")
    location = f"{finding.tool}{' at ' + finding.where if finding.where else ''}: " if finding.tool else ""
    output.print_line(f"  {mark} {location}{finding.message}", style)
    output.print_line(f"    rejected by {', '.join(finding.providers)}; {finding.hint} [{finding.code}]")


# -- logs --------------------------------------------------------------------------------------------------------------


async def run_logs(
    context: CommandContext, name: str | None, *, follow: bool, lines: int, wait: float | None
) -> ExitCode:
    """Print the last stderr lines of servers, and with `follow` new lines until Ctrl-C."""
    output = context.output
    target = await find_target(output, context.target_options)
    async with target.open(name) as servers:
        await wait_for_tools(servers, output, 0.0 if follow else wait, name)
        known = _stderr_lines(servers.status(), name)
        if output.as_json and not follow:
            output.print_json({"logs": {server: each[-lines:] for server, each in known.items()}})
            return ExitCode.OK
        _print_lines(output, {server: each[-lines:] for server, each in known.items()}, show_names=name is None)
        while follow:
            await asyncio.sleep(_FOLLOW_INTERVAL_S)
            now = _stderr_lines(await _poll_statuses(servers), name)
            new = {server: new_lines(known.get(server, []), each) for server, each in now.items()}
            _print_lines(output, new, show_names=name is None)
            known = now
    if not any(known.values()):
        output.info("stderr is empty")
    return ExitCode.OK


async def _poll_statuses(servers: HubApi) -> Mapping[str, ServerStatus]:
    await servers.list_tools(wait=0)
    return servers.status()


def _stderr_lines(statuses: Mapping[str, ServerStatus], name: str | None) -> dict[str, list[str]]:
    if name is not None:
        require_server(statuses, name)
    chosen = {server: status for server, status in statuses.items() if name in (None, server)}
    return {server: status.stderr.splitlines() for server, status in chosen.items()}


def new_lines(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return the lines of `now` that were added since `before`.

    Both arguments hold only the last lines, so they may overlap partly or not at all.
    """
    for old in range(min(len(before), len(now)), 0, -1):
        if list(before[-old:]) == list(now[:old]):
            return list(now[old:])
    return list(now)


def _print_lines(output: Output, lines: Mapping[str, Sequence[str]], *, show_names: bool) -> None:
    for server, each in lines.items():
        for line in each:
            if output.as_json:
                output.print_json_line({"server": server, "line": line})
            else:
                output.print_line(f"{server} | {line}" if show_names else line)
    sys.stdout.flush()


# -- ps ----------------------------------------------------------------------------------------------------------------


async def run_ps(context: CommandContext, *, orphans: bool, kill: bool) -> ExitCode:
    """Print the server processes of the running gateway, or with `orphans` leftover processes.

    `kill` terminates the leftover ones, whose client has ended.
    """
    if kill and not orphans:
        raise UsageError("--kill requires --orphans", hint="run: toolway ps --orphans --kill")
    if orphans:
        return _run_ps_orphans(context, kill)
    output = context.output
    gateway = await find_gateway(output, context.target_options)
    running = (await gateway.request_admin("GET", "servers"))["servers"] if gateway is not None else []
    rows = [server for server in running if server.get("pid")]
    if output.as_json:
        keys = ("server", "pid", "state", "since", "restarts")
        output.print_json({"processes": [{key: row[key] for key in keys} for row in rows]})
    elif rows:
        table = [
            (str(r["pid"]), r["server"], r["state"], format_duration(r["since"]), str(r["restarts"])) for r in rows
        ]
        output.print_table(("pid", "server", "state", "since", "restarts"), table, right=("pid",))
    else:
        why = "no processes" if gateway is not None else "no gateway is running, so no servers are"
        output.info(f"{why}; list orphaned processes: toolway ps --orphans")
    return ExitCode.OK


def _run_ps_orphans(context: CommandContext, kill: bool) -> ExitCode:
    if lacked := missing("orphans"):
        raise platform_error(*lacked)
    output = context.output
    try:
        servers: dict[str, Any] = load_masked_config(output, context.target_options).servers
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
        servers = {}
    found = find_orphans(servers)
    terminated = [orphan.apply() for orphan in found] if kill else []
    if output.as_json:
        output.print_json({"orphans": [asdict(orphan) for orphan in found], "ended": terminated})
        return ExitCode.OK
    if not found:
        output.info("no orphaned processes")
        return ExitCode.OK
    _print_orphans(output, found)
    for line in terminated:
        output.info(line)
    if not kill:
        output.info("terminate them with: toolway ps --orphans --kill", "bold")
    return ExitCode.OK


def _print_orphans(output: Output, found: list[Orphan]) -> None:
    rows = [
        (str(each.pid), each.server or "–", f"{each.megabytes} MB", format_duration(each.seconds), each.command)
        for each in found
    ]
    output.print_table(("pid", "server", "memory", "since", "command"), rows, right=("pid", "memory"), cut=True)

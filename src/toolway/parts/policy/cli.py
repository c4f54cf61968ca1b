"""`toolway policy`: check the gateway's policy file, explain decisions, test it, or write a first one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.params import Wait
from toolway.cli.targets import find_target, wait_for_tools
from toolway.config.scopes import load_config
from toolway.errors import ConfigError, NotFound
from toolway.gateway.tool_filter import filter_for_access
from toolway.parts.policy.policy_file import load_policy, policy_path
from toolway.parts.policy.presets import PRESETS, access_text, preset_text
from toolway.parts.policy.review import explain, find_item, read_cases, review
from toolway.parts.policy.settings import policy_file_of

if TYPE_CHECKING:
    from toolway.catalog.catalog import Tool
    from toolway.config.loader import LoadedConfig
    from toolway.parts.policy.engine import AccessDecision
    from toolway.parts.policy.policy_file import LoadedPolicy
    from toolway.parts.policy.review import PolicyTest, Review

PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Use this file, not toolway.policy.", show_default=False),
]


def policy_check(context: CommandContext, policy: PolicyFile = None, wait: Wait = None) -> CommandResult:
    """Validate the policies and compare their names with the tools. Exit with 9 if something is wrong."""
    return run_policy_check(context, policy, wait)


def policy_why(
    context: CommandContext,
    user: Annotated[str, typer.Argument(metavar="USER", help="As in a policy: alice, key:NAME or local.")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="server.tool")],
    group: Annotated[list[str] | None, typer.Option("--group", metavar="G", help="A group of the user.")] = None,
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="Arguments of the call.")] = "{}",
    action: Annotated[str, typer.Option("--action", metavar="A", help="call, get or read.")] = "call",
    client: Annotated[str, typer.Option("--client", metavar="ID", help="Client program.")] = "",
    hour: Annotated[int, typer.Option("--hour", metavar="H", min=0, max=23, help="Hour in UTC.")] = 12,
    mfa: Annotated[bool, typer.Option("--mfa", help="The user logged in with several factors.")] = False,
    policy: PolicyFile = None,
    wait: Wait = None,
) -> CommandResult:
    """Show whether a call is allowed, and the policies that decide it."""
    row = {"user": user, "groups": group or [], "tool": tool, "action": action, "client": client, "hour": hour}
    row |= {"mfa": mfa, "args": _parse_object(args), "expect": "allow"}
    return run_policy_why(context, row, policy, wait)


def policy_test(
    context: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Table of tests, in YAML or JSON.")],
    policy: PolicyFile = None,
    wait: Wait = None,
) -> CommandResult:
    """Compare the decisions of the policies with a table of expected ones. Exit with 9 if one differs."""
    return run_policy_test(context, file, policy, wait)


def policy_new(
    context: CommandContext,
    preset: Annotated[
        str,
        typer.Option(
            "--preset", metavar="NAME", help="read-only, groups, careful, arguments, or access: from the file."
        ),
    ] = "read-only",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")] = Path("policy.cedar"),
) -> CommandResult:
    """Write a policy file with comments to start from. An existing file is not changed."""
    return run_policy_new(context, preset, out)


async def run_policy_check(context: CommandContext, file: Path | None, wait: float | None) -> ExitCode:
    """Print mistakes in the policy file: unknown names, unused policies, tools that nobody may call."""
    loaded = _load(context, file)
    tools, servers = await _list_tools(context, wait)
    found = review(loaded.engine, tools, servers)
    if context.output.as_json:
        context.output.print_json(
            {
                "file": loaded.file,
                "policies": len(loaded.engine.policies),
                "tools": len(tools),
                "unknown": [each._asdict() for each in found.unknown],
                "unfit": [each._asdict() for each in found.unfit],
                "unreachable": list(found.unreachable),
                "unused": list(found.unused),
                "ok": found.is_clean,
            }
        )
    else:
        _print_review(context, loaded, found, len(tools))
    return ExitCode.OK if found.is_clean else ExitCode.LINT


def _print_review(context: CommandContext, loaded: LoadedPolicy, found: Review, tools: int) -> None:
    output = context.output
    for name in found.unknown:
        near = f"; did you mean {name.suggestion}?" if name.suggestion else ""
        output.print_line(f"✗ {loaded.file}:{name.line}: policy {name.policy}: {name.name} does not exist{near}", "red")
    for problem in found.unfit:
        output.print_line(f"✗ {loaded.file}:{problem.line}: {problem}; its calls are denied", "red")
    if found.unreachable:
        shown = ", ".join(found.unreachable[:20])
        more = f" and {len(found.unreachable) - 20} more" if len(found.unreachable) > 20 else ""
        output.print_line(f"! no policy permits these tools to anyone: {shown}{more}", "yellow")
    for label in found.unused:
        output.print_line(f"! policy {label} applies to no known tool", "yellow")
    if found.is_clean:
        output.print_line(f"✓ {len(loaded.engine.policies)} policies are valid for {tools} tools", "green")


async def run_policy_why(
    context: CommandContext, row: dict[str, Any], file: Path | None, wait: float | None
) -> ExitCode:
    """Print the decision about one call, and the policies behind it.

    The exit code is 0 whether the call is allowed or denied.
    """
    loaded = _load(context, file)
    try:
        [case] = read_cases([row], loaded.file)
    except ConfigError as exc:
        raise UsageError(exc.detail.removeprefix("test 1: "), hint="toolway policy why --help") from None
    tools, _ = await _list_tools(context, wait)
    item = find_item(case, tools)
    if item is None:
        raise NotFound(f"unknown tool {case.tool!r}", hint="list the tools: toolway tools")
    decision, policies = explain(loaded.engine, case, item)
    texts = [
        {"id": each.label, "line": each.line, "effect": each.definition["effect"], "text": loaded.engine.text_of(each)}
        for each in policies
    ]
    access = _access_of(_load_config(context), case)
    output = context.output
    if output.as_json:
        answer = {"allowed": decision.allowed, "policies": texts, "reason": _reason(decision), "access": access}
        output.print_json({"user": case.caller.id, "tool": case.tool, **answer})
        return ExitCode.OK
    word = "allowed" if decision.allowed else "denied"
    output.print_line(f"{word}: {_reason(decision)}", "green" if decision.allowed else "red")
    for text in texts:
        output.print_line(f"\n{text['id']} ({loaded.file}:{text['line']})", "bold")
        for line in str(text["text"]).strip().splitlines():
            output.print_line(f"  {line}")
    if access is not None:
        output.print_line(
            f"\ntoolway.access {'includes' if access else 'does not include'} the tool: both must allow it"
        )
    return ExitCode.OK


def _reason(decision: AccessDecision) -> str:
    if decision.reason:
        return decision.reason
    if decision.policies:
        return f"{'permitted' if decision.allowed else 'forbidden'} by {', '.join(decision.policies)}"
    return "no policy permits it"


async def run_policy_test(context: CommandContext, table: Path, file: Path | None, wait: float | None) -> ExitCode:
    """Print the test rows for which the policies decide differently than expected."""
    from toolway.workflows.reader import parse_yaml

    loaded = _load(context, file)
    try:
        text = table.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"cannot read the policy test table: {table}",
            detail=str(exc),
            hint="use a YAML or JSON file: toolway policy test FILE",
            code="E-POLICY",
        ) from None
    cases = read_cases(parse_yaml(text, str(table)), str(table))
    tools, _ = await _list_tools(context, wait)
    rows = []
    for number, case in enumerate(cases, 1):
        item = find_item(case, tools)
        decision = explain(loaded.engine, case, item)[0] if item is not None else None
        got = "unknown tool" if decision is None else "allow" if decision.allowed else "deny"
        expected = "allow" if case.expected else "deny"
        reason = _reason(decision) if decision is not None else "no server has this tool"
        rows.append({"test": number, "user": case.caller.id, "tool": case.tool, "expected": expected, "got": got})
        rows[-1] |= {"ok": got == expected, "reason": reason}
    failed = [row for row in rows if not row["ok"]]
    output = context.output
    if output.as_json:
        output.print_json({"file": str(table), "tests": rows, "failed": len(failed), "ok": not failed})
    else:
        if failed:
            keys = ("test", "user", "tool", "expected", "got", "reason")
            output.print_table(keys, [[str(row[key]) for key in keys] for row in failed])
        output.info(f"{len(rows) - len(failed)} of {len(rows)} tests passed")
    return ExitCode.LINT if failed else ExitCode.OK


def run_policy_new(context: CommandContext, preset: str, out: Path) -> ExitCode:
    """Write a new policy file based on this preset."""
    if preset == "access":
        access = _load_config(context).gateway.access
        if not access:
            raise ConfigError(
                "the configuration has no toolway.access",
                hint=f"pick another preset: {', '.join(PRESETS)}",
                code="E-POLICY",
            )
        text = access_text(access)
    elif preset in PRESETS:
        text = preset_text(preset)
    else:
        raise UsageError(f"unknown preset {preset!r}", hint=f"pick one of: {', '.join((*PRESETS, 'access'))}")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{out} already exists", hint="pick another file: --out FILE") from None
    except OSError as exc:
        raise ConfigError(f"cannot write {out}", detail=str(exc), hint="pick another file: --out FILE") from None
    if context.output.as_json:
        context.output.print_json({"file": str(out), "preset": preset})
    else:
        context.output.info(f'wrote {out}; use it: "toolway": {{"policy": "{out.name}"}}')
    return ExitCode.OK


# -- what the commands share -------------------------------------------------------------------------------------------


def _load_config(context: CommandContext) -> LoadedConfig:
    return load_config(os.environ, Path.cwd(), context.config_file())


def _load(context: CommandContext, file: Path | None) -> LoadedPolicy:
    """Load the policies in `file`, or in the configured policy file. Raises `ConfigError` if that fails."""
    if file is not None:
        return load_policy(file)
    config = _load_config(context)
    if not policy_file_of(config.gateway):
        raise ConfigError(
            "no policy is set in the configuration",
            file=str(config.file),
            hint='run `toolway policy new`, then add "toolway": {"policy": "policy.cedar"}',
            code="E-POLICY",
        )
    return load_policy(policy_path(policy_file_of(config.gateway), str(config.file)))


async def _list_tools(context: CommandContext, wait: float | None) -> tuple[list[Tool], list[str]]:
    """Return all servers' tools, and the server names, from the running gateway.

    If no gateway is running, use cached lists, and start the servers without one.
    """
    output = context.output
    target = await find_target(output, context.target_options)
    cached = target.cached()
    if cached is None:
        async with target.open() as servers:
            tools = await servers.list_tools(wait=wait)
            return tools, list(servers.status())
    if cached.uncached:
        async with target.open_some(cached.uncached) as servers:
            await wait_for_tools(servers, output, wait)
            for name in cached.uncached:
                cached.catalog.replace(name, "tools", [tool.raw for tool in servers.known_tools(server=name)])
    return cached.catalog.tools(None), cached.catalog.servers()


def _access_of(config: LoadedConfig, case: PolicyTest) -> bool | None:
    """Return True if `toolway.access` lets a test case's user use its tool.

    Return None if `toolway.access` is not set, if the caller is not a user, or if the action is `read`.
    """
    access = config.gateway.access
    if not access or case.caller.kind != "user" or case.action == "read":
        return None

    groups = [*(each for each in case.caller.groups if each != "*"), "*"]
    return case.tool in filter_for_access(access[group] for group in groups if group in access)


def _parse_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("--args must be a JSON object", hint="use: --args '{\"amount\": 500}'")
    return found

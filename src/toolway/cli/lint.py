"""`toolway lint`: what model providers would refuse of the tools, and what the tools cost."""

from __future__ import annotations

from dataclasses import asdict

from toolway.cli.exits import Exit
from toolway.cli.known import Kept
from toolway.cli.options import Session
from toolway.cli.output import Output
from toolway.cli.places import Place, find
from toolway.cli.running import wait_listed
from toolway.doctor.lint import Finding, Lint
from toolway.doctor.lint import lint as examine
from toolway.model import Json


async def lint(session: Session, name: str | None, *, strict: bool, wait: float, refresh: bool) -> Exit:
    """The findings about every tool of one server, or of all. 9 where a provider would refuse something."""
    output = session.output
    place = await find(output, session.where)
    found = [examine(server, tools) for server, tools in (await _tools(output, place, name, wait, refresh)).items()]
    if output.as_json:
        output.facts({"servers": [_facts(each) for each in found]})
    else:
        for each in found:
            _print(output, each)
    severities = {finding.severity for each in found for finding in each.findings}
    return Exit.LINT if "error" in severities or (strict and severities) else Exit.OK


async def _tools(output: Output, place: Place, name: str | None, wait: float, refresh: bool) -> dict[str, list[Json]]:
    """The tools by their servers, as kept or as the servers say now."""
    kept: Kept | None = place.kept(name)
    if kept is not None and not kept.missing and not refresh:
        return {server: [tool.raw for tool in kept.catalog.tools(server)] for server in kept.at}
    async with place.asking(name) as servers:
        statuses = await wait_listed(servers, output, wait, name)
        for status in statuses:
            if status.state not in ("ready", "disabled") and not status.tools:
                output.say(f"{status.server}: {status.why}", "red")
        return {s.server: [t.raw for t in servers.tools(server=s.server)] for s in statuses if s.tools}


def _facts(found: Lint) -> Json:
    return {
        "server": found.server,
        "tools": found.tools,
        "tokens": asdict(found.cost),
        "findings": [asdict(finding) for finding in found.findings],
    }


def _print(output: Output, found: Lint) -> None:
    verdict = "nothing to complain about" if not found.findings else f"{len(found.findings)} to look at"
    tools = f"{found.tools} tool{'s' if found.tools != 1 else ''}"
    output.line(
        f"{found.server}: {tools}, about {found.cost.most:,} tokens; {verdict}", "" if found.findings else "green"
    )
    for finding in found.findings:
        _print_finding(output, finding)


def _print_finding(output: Output, finding: Finding) -> None:
    mark, style = ("✗", "red") if finding.severity == "error" else ("!", "yellow")
    place = f"{finding.tool}{' at ' + finding.where if finding.where else ''}: " if finding.tool else ""
    output.line(f"  {mark} {place}{finding.what}", style)
    output.line(f"    refused by {', '.join(finding.providers)}; {finding.fix} [{finding.code}]")

"""What a server that came up shows: its era, its tools, and what model providers will make of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from toolway.catalog.index import Catalog
from toolway.config.spec import Server
from toolway.doctor.entry_checks import entry_text
from toolway.doctor.lint import PROVIDERS, Finding, lint
from toolway.doctor.report import Check, split_fix
from toolway.doctor.start_checks import took
from toolway.doctor.starting import Start

DEAR: Final = 10_000  # tokens: a twentieth of what a model can hold
_TITLES: Final = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Gemini"}


def handshake(server: Server, seen: Start) -> Check:
    """The era; or why there was no agreement, where it is not known better."""
    agreed = seen.agreement
    if agreed is None:
        failure = seen.failure
        if failure is None or failure.code not in ("E-ERA", "E-VERSION", "E-START-REFUSED", "E-ANSWER"):
            return Check("handshake", "skip", "not reached")
        if failure.code == "E-ERA":
            what = "the server speaks only the handshake era, and its entry demands the modern one"
            return Check(
                "handshake", "fail", what, failure.reason, "let it be found out", entry_text({"era": "auto"}), "E-ERA"
            )
        return Check("handshake", "fail", failure.reason, fix=failure.fix, code=failure.code)
    began = seen.fetched if seen.fetched is not None else seen.spawned or 0.0
    assert seen.agreed is not None
    text = f"{agreed.version}, in {took(max(0.0, seen.agreed - began))}"
    if seen.dies_when_asked:
        text += "; it ends when it is asked for 2026-07-28, as newer clients do"
    return Check("handshake", "ok", text)


def api(seen: Start) -> Iterator[Check]:
    """An HTTP API speaks no era: its document is read, and it takes connections, or not."""
    agreed, failure = seen.agreement, seen.failure
    if agreed is not None:
        yield Check("document", "ok", f"{agreed.instructions or 'read'}, in {took(seen.agreed)}")
    elif failure is not None:
        is_document = failure.code.startswith("E-OPENAPI-") or failure.reason.startswith("the document")
        name = "document" if is_document else "connect"
        yield Check(name, "fail", failure.reason, "", *split_fix(failure.fix), failure.code)
    for note in seen.notes:
        yield Check("document", "warn", note, code="E-OPENAPI-DOCUMENT")


def tools(name: str, seen: Start) -> Iterator[Check]:
    """The list, what was set aside of it, schemas, names, tokens."""
    if seen.listed is None:
        if seen.agreement is not None and seen.failure is not None:
            why = f"the server shows no tools: {seen.failure.reason}"
            yield Check("tools", "fail", why, fix=seen.failure.fix, code=seen.failure.code)
        else:
            yield Check("tools", "skip", "not reached")
        return
    kept, aside = _sorted_out(name, seen.tools, seen.list_problems)
    assert seen.agreed is not None
    count = f"{len(kept)} tool{'' if len(kept) == 1 else 's'}, in {took(seen.listed - seen.agreed)}"
    yield Check("tools", "ok", count)
    for problem in aside:
        fix = "report it to the server's maker; the other tools are not affected"
        yield Check("tools", "warn", problem, fix=fix, code="E-LINT-SCHEMA")
    yield from _linted(name, kept)


def _sorted_out(name: str, items: Sequence[Any], problems: Sequence[str]) -> tuple[list[Any], tuple[str, ...]]:
    catalog = Catalog()
    catalog.add_server(name)
    catalog.replace(name, "tools", list(items), list(problems))
    return [tool.raw for tool in catalog.tools(name)], catalog.problems(name)


def _linted(name: str, items: Sequence[Any]) -> Iterator[Check]:
    if not items:
        return
    found = lint(name, items)
    schemas = [finding for finding in found.findings if finding.code == "E-LINT-SCHEMA"]
    others = [finding for finding in found.findings if finding.code != "E-LINT-SCHEMA"]
    yield _schemas(schemas) if schemas else Check("schemas", "ok", "fit OpenAI, Anthropic and Gemini")
    for finding in others[:1]:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        yield Check("names", "warn", finding.what + more, fix=finding.fix, code=finding.code)
    cost = found.cost
    text = f"about {cost.openai:,} (OpenAI), {cost.anthropic:,} (Anthropic), {cost.gemini:,} (Gemini)"
    if cost.most > DEAR:
        fix = "give models a group of the tools they need: `toolway.groups` in the file of servers"
        yield Check("tokens", "warn", f"the tools cost {text} in every request", fix=fix, code="E-LINT-COST")
    else:
        yield Check("tokens", "ok", text)


def _schemas(found: Sequence[Finding]) -> Check:
    """The worst first, and how many more there are."""
    ordered = sorted(found, key=lambda finding: -len(finding.providers))
    first = ordered[0]
    who = " and ".join(_TITLES[provider] for provider in first.providers)
    who = "every model provider" if len(first.providers) == len(PROVIDERS) else who
    verb = "refuses" if len(first.providers) in (1, len(PROVIDERS)) else "refuse"
    place = f" at {first.where}" if first.where else ""
    lines = [_line(finding) for finding in ordered[1:6]]
    if len(ordered) > 6:
        lines.append(f"and {len(ordered) - 6} more: toolway lint shows all")
    return Check(
        "schemas",
        "fail" if len(first.providers) == len(PROVIDERS) else "warn",
        f"{who} {verb} the tool {first.tool}: {first.what}{place}",
        "\n".join(lines),
        f"in the server's source: {first.fix}",
        code=first.code,
    )


def _line(finding: Finding) -> str:
    place = f" at {finding.where}" if finding.where else ""
    return f"{finding.tool}: {finding.what}{place} ({', '.join(_TITLES[p] for p in finding.providers)})"

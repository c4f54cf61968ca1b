"""`toolway approve`: a project's file is looked at and approved, as it is now.

Commands and their arguments are shown whole, with every character that a terminal would not show spelled out: what is
hidden could not be approved. Only values that are plainly secrets, in `env` and `headers`, are masked.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolway.cli.exits import Exit, UsageError
from toolway.cli.output import Output
from toolway.config import jsonc
from toolway.config.approvals import open_approvals
from toolway.config.formats import OUR_BLOCK, content, entries_of, text_of
from toolway.config.mask import masked
from toolway.config.scopes import Waiting, find, load
from toolway.errors import ConfigError, NotFound
from toolway.model import Json

_DIGEST: Final = re.compile("[0-9a-f]{64}")  # all of it: two contents that begin alike are quickly made


def approve(output: Output, file: Path | None, wanted: str | None) -> Exit:
    """Show what waits, and approve it if a person says so, or if its digest was given."""
    if wanted is not None and not _DIGEST.fullmatch(wanted):
        raise UsageError("a digest has 64 characters of 0-9 and a-f", fix="see it: toolway approve")
    waiting = _waiting(file)
    shown = [_facts(each) for each in waiting]
    approved = []
    for each, facts in zip(waiting, shown, strict=True):
        if not output.as_json:
            _show(output, facts)
        if _agreed(each, wanted, alone=len(waiting) == 1, ask=not output.as_json):
            open_approvals(os.environ).approve(each.path, each.content)
            approved.append(each.path)
            if not output.as_json:
                output.say(f"approved: {each.path}", "green")
        elif not output.as_json:
            output.say(f"not approved. To approve exactly this: toolway approve --digest {each.digest}", "yellow")
    if output.as_json:
        output.facts({"files": [{**facts, "approved": Path(facts["file"]) in approved} for facts in shown]})
    elif not waiting:
        output.say("nothing waits for approval")
    return Exit.OK if len(approved) == len(waiting) else Exit.CONFIG


def withdraw(output: Output, file: Path | None) -> Exit:
    """Take an approval back: the file is not used any more."""
    files = [file] if file is not None else list(find(os.environ, Path.cwd()).project)
    taken = [str(each) for each in files if open_approvals(os.environ).withdraw(each)]
    if not taken:
        raise NotFound("no file that was approved is here", fix="name it: toolway approve --withdraw FILE")
    if output.as_json:
        output.facts({"withdrawn": taken})
    else:
        output.say(f"not used any more: {', '.join(taken)}")
    return Exit.OK


def _waiting(file: Path | None) -> Sequence[Waiting]:
    """What is to be approved: the file that is named, whatever its state, or those of this project that wait."""
    if file is None:
        return load(os.environ, Path.cwd()).waiting
    path = file.absolute()
    if path not in find(os.environ, path.parent).project:
        raise UsageError(
            f"{file} is not the file of a project",
            evidence="a project's file is its mcp.json or .mcp.json; others need no approval",
            fix=f"use it: toolway --config {file}",
        )
    return [Waiting(path, content(os.fspath(path)), changed=False)]


def _agreed(waiting: Waiting, wanted: str | None, *, alone: bool, ask: bool) -> bool:
    if wanted is not None:
        if alone and waiting.digest != wanted:
            raise ConfigError(
                f"{waiting.path} is not what was to be approved",
                evidence=f"its digest is {waiting.digest}",
                fix="look at it again: toolway approve",
                code="E-CONFIG-APPROVAL",
            )
        return waiting.digest == wanted
    if not ask or not sys.stdin.isatty():
        return False
    sys.stderr.write("Use this file, exactly as it is now? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _facts(waiting: Waiting) -> Json:
    file = os.fspath(waiting.path)
    document = jsonc.parse(text_of(waiting.content, file), file)
    _, entries = entries_of(document, file)
    facts: Json = {
        "file": file,
        "digest": waiting.digest,
        "changed": waiting.changed,
        "servers": {name: _entry(entry) for name, entry in entries.items()},
    }
    if isinstance(document.value, dict) and OUR_BLOCK in document.value:
        facts[OUR_BLOCK] = masked(document.value[OUR_BLOCK], OUR_BLOCK)
    return facts


def _entry(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    whole = {key: entry[key] for key in ("command", "args") if key in entry}
    return {**masked(entry), **whole}


def _show(output: Output, facts: Json) -> None:
    output.line(f"{facts['file']}{' has changed since it was approved' if facts['changed'] else ''}", "bold")
    output.line(f"sha256 {facts['digest']}", "dim")
    for name, entry in facts["servers"].items():
        output.line(f"\n{_spelled(name)[1:-1]}", "bold")
        for key, value in entry.items() if isinstance(entry, Mapping) else [("", entry)]:
            if isinstance(value, Mapping):
                for inner, text in value.items():
                    _line(output, f"{key}.{inner}", text)
            else:
                _line(output, key, value)
    if OUR_BLOCK in facts:
        output.line(f"\n{OUR_BLOCK}  {_spelled(facts[OUR_BLOCK])}")
    output.line()


def _line(output: Output, key: str, value: Any) -> None:
    output.line(f"  {_spelled(key)[1:-1]:<22}  {_spelled(value)}")


def _spelled(value: Any) -> str:
    """As JSON in plain ASCII: no letter that looks like another, nothing that moves the cursor."""
    return json.dumps(value)

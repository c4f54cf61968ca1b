"""Run the whole corpus in the sandboxes guard and strict, and its definitions through the structural rules of pins.

python interop/sandboxes.py --installed DIR [--only-callable] [--servers FILE]

All servers start at once behind one hub: without a sandbox, in `guard`, and in `strict` with no network and their
scratch folder granted. Exit code 1 if a server is not ready, or lists other tools in a sandbox, or if a definition is
held.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import corpus
from run import HubResults, _query_all, _reset

from toolway.catalog.definition_rules import ToolNames, inspect_definition
from toolway.catalog.pins import shown_parts
from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process.sandboxes import describe

KINDS = {"tools": "name", "prompts": "name", "templates": "uriTemplate"}
#: In `strict`, code-runner calls a `python` that was not granted to it.
MISSING_CALLS = {"off": 0, "guard": 0, "strict": 1}


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to start")
        return 0
    packages = corpus.read_packages(options.servers, only_callable=options.only_callable)
    failed = False
    found: dict[str, dict[str, HubResults]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(packages, installed=options.installed, work=Path(work))
        for sandbox in ("off", "guard", "strict"):
            _reset(servers)
            found[sandbox], _ = asyncio.run(_query_all(servers, sandbox))
            failed |= not _report(sandbox, found[sandbox], found["off"])
    return int(_report_pins(found["off"]) > 0 or failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only-callable", action="store_true", help="only the servers with a call")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    return parser.parse_args()


def _report(sandbox: Sandbox, found: dict[str, HubResults], plain: dict[str, HubResults]) -> bool:
    """Print the line of a sandbox and what failed; return True if nothing did that must not."""
    ready = [name for name, one in found.items() if one.ready]
    calls = [one for one in found.values() if one.responses.get("call") is not None]
    called = sum(one.called for one in calls)
    tools = sum(len(_items(one, "tools")) for one in found.values())
    different = [name for name in ready if _names(found[name]) != _names(plain[name])]
    print(f"{sandbox}: {len(ready)} of {len(found)} ready, {tools} tools, {called} of {len(calls)} calls")
    if sandbox != "off":
        print("  " + "\n  ".join(describe(sandbox, SandboxGrants())))
    for name, one in found.items():
        if not one.ready:
            print(f"  {name} is not ready: {one.problem[:300]}")
        elif one in calls and not one.called:
            print(f"  {name}: the call failed: {str(one.responses['call'])[:300]}")
    for name in different:
        print(f"  {name} lists other tools than without a sandbox")
    return len(ready) == len(found) and not different and called >= len(calls) - MISSING_CALLS[sandbox]


def _report_pins(found: dict[str, HubResults]) -> int:
    """Print how many definitions the structural rules would hold, with each match; return the number."""
    names = ToolNames()
    for server, one in found.items():
        names.replace(server, [each["name"] for each in _items(one, "tools")])
    held, noted, counts = 0, 0, dict.fromkeys(KINDS, 0)
    for server, one in found.items():
        for kind, key in KINDS.items():
            for item in _items(one, kind):
                counts[kind] += 1
                matches = inspect_definition(shown_parts(kind, item), partial(names.is_foreign, server))
                alike = names.find_alike(server, item[key]) if kind == "tools" else None
                holding = [str(each) for each in matches if each.effect == "hold"]
                holding += [f"look-alike of {alike}"] if alike is not None else []
                held += bool(holding)
                noted += bool(matches) and not holding
                for each in holding:
                    print(f"  held: {server} {kind} {item[key]}: {each}")
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"pins: {held} held and {noted} noted of {sum(counts.values())} definitions ({listed})")
    return held


def _items(one: HubResults, kind: str) -> list[dict[str, Any]]:
    items = one.responses.get(kind)
    return items if isinstance(items, list) else []


def _names(one: HubResults) -> list[str]:
    return [each["name"] for each in _items(one, "tools")]


if __name__ == "__main__":
    sys.exit(main())

"""Cost of a gateway's guards: calls per second with pins, approvals, policies, budgets, redaction and flows.

    python -m bench.trust [--turns 12] [--seconds 0.3] [--least 0.85]
    python -m bench.trust --after-yes [--rounds 300]

Each variant is compared with the gateway that has none of them, as in `bench.telemetry`. Every guard is configured so
that it decides about the measured tool and allows it. The cheapest turn counts. Exit code 1 if a call without guards
takes less than `--least` of the CPU time of a call with all of them. `--after-yes` measures `bench.approved_call` only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bench import approved_call, fast_peers, machine
from bench.install import build_tools
from bench.launch import Launch, LaunchContext
from bench.plan import Pace
from bench.telemetry import measure_variants, report

OFF: Final = "none"
ALL: Final = "all of them"
POLICY: Final = """
@id("users") permit (principal, action, resource);
@id("payments") forbid (principal, action == Action::"call", resource in Server::"bank");
"""
#: Settings of the `toolway` block, of each server entry, and options of the API key.
GUARDS: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]]] = {
    "pins": ({"gateway": {"pins": "hold"}}, {}, ()),
    "approvals": ({"approve": {"destructive": "operator", "bank.*": "operator"}}, {}, ()),
    "policy": ({"policy": "policy.cedar"}, {}, ()),
    "budgets": ({}, {}, ("--budget", "1000000000/day")),
    "secrets out of results": ({}, {"headers": {"Authorization": "Bearer correct-horse-battery"}}, ()),
    "flows": ({"flows": "deny"}, {"labels": ["private"]}, ()),
}


def launch_guarded(names: tuple[str, ...], context: LaunchContext) -> Launch:
    block: dict[str, Any] = {}
    entry: dict[str, Any] = {}
    options: list[str] = []
    for name in names:
        settings, of_server, of_key = GUARDS[name]
        block |= settings
        entry |= of_server
        options += of_key
    launch = fast_peers.toolway(context, *options)
    (context.folder / "policy.cedar").write_text(POLICY)
    file = context.folder / "servers.json"
    found = json.loads(file.read_text())
    servers = {name: {**each, **entry} for name, each in found["mcpServers"].items()}
    file.write_text(json.dumps({"mcpServers": servers, "toolway": block}))
    return launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--least", type=float, default=0.85, help="required share of CPU time")
    parser.add_argument("--after-yes", action="store_true", help="only the time that an approval adds to its call")
    parser.add_argument("--rounds", type=int, default=300, help="approved calls of --after-yes")
    options = parser.parse_args()
    if options.after_yes:
        approved_call.report(options.rounds)
        return
    build_tools()
    machine.leave_gateway_core()
    variants = {OFF: (), **{name: (name,) for name in GUARDS}, ALL: tuple(GUARDS)}
    launches = {name: partial(launch_guarded, guards) for name, guards in variants.items()}
    found = measure_variants(Pace(turns=options.turns, warm=0.3, seconds=options.seconds), launches)
    report(found, OFF, ALL, options.least, by_cheapest=True)


if __name__ == "__main__":
    main()

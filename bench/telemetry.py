"""What it costs to be seen: calls a second through one gateway with nobody listening, with metrics, with an audit log,
with traces, each as a share of the first.

    python -m bench.telemetry [--turns 5] [--seconds 1.0] [--least 0.8]

All stand side by side before the same lean server and take turns, so that what disturbs the machine disturbs all of
them alike; the median of the turns counts. Needs a C compiler, and `toolway[otel]`. Ends with 1 where metrics with an
audit log keep less than `--least` of the bare gateway.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from bench import machine, swift
from bench.install import build_tools
from bench.launch import Launch, Place
from bench.measure import Gateway, gateway, measure, servers, wait_until_good
from bench.peers import Peer
from bench.plan import Behind, Case, Pace

QUIET: Final = {"metrics": False, "calls": False}
COUNTED: Final = {"metrics": True, "calls": False}
CASES: Final = (Case("echo", "modern", 16), Case("echo", "modern", 64))
AUDITED: Final = "metrics + audit (SQLite)"


def variants(collector: str) -> dict[str, dict[str, Any]]:
    """What stands in the `toolway` block of each."""

    def traced(share: float) -> dict[str, Any]:
        return {"telemetry": {**COUNTED, "traces": {"endpoint": collector, "sample": share}}}

    return {
        "bare": {"telemetry": QUIET},
        "metrics": {"telemetry": COUNTED},
        AUDITED: {"telemetry": COUNTED, "audit": {"to": "sqlite"}},
        "metrics + traces of 1 %": traced(0.01),
        "metrics + traces of 100 %": traced(1.0),
        "as it comes": {},
        "as it comes + audit": {"audit": {"to": "sqlite"}},
    }


def launched(block: Mapping[str, Any], place: Place) -> Launch:
    launch = swift.toolway(place)
    file = place.folder / "servers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "toolway": block}))
    return replace(launch, env={**launch.env, "OTEL_METRICS_EXPORTER": "none"})


@contextlib.contextmanager
def collecting() -> Iterator[str]:
    """A collector in a process of its own, which takes everything and keeps nothing."""
    command = machine.pinned([sys.executable, "-m", "bench.telemetry", "--collect"], machine.core_of("load"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def collect() -> None:
    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def measured(pace: Pace) -> dict[str, dict[Case, list[dict[str, Any]]]]:
    with collecting() as collector, servers(Behind("http")) as there, contextlib.ExitStack() as stack:
        ready: dict[str, Gateway] = {}
        for name, block in variants(collector).items():
            peer = Peer("toolway", name, partial(launched, block), "")
            ready[name] = stack.enter_context(gateway(peer, there))
        for one in ready.values():
            wait_until_good(one, Case("echo", "modern", 1))
        found: dict[str, dict[Case, list[dict[str, Any]]]] = {name: {case: [] for case in CASES} for name in ready}
        for _ in range(pace.turns):
            for case in CASES:
                for name, one in ready.items():
                    figures = measure(one, case, pace)
                    if figures["errors"] or not figures.get("rate"):
                        raise SystemExit(f"{name}: {figures.get('first_error') or 'no answer'}")
                    found[name][case].append(figures)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--least", type=float, default=0.8, help="share of the bare gateway that metrics + audit keep")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        collect()
        return
    build_tools()
    machine.stand_aside()
    found = measured(Pace(turns=options.turns, warm=0.3, seconds=options.seconds))
    kept = {}
    for case in CASES:
        print(f"echo × {case.connections}          calls/s   share   CPU-µs a call   share of CPU")
        rates = {name: statistics.median(each["rate"] for each in cases[case]) for name, cases in found.items()}
        costs = {name: statistics.median(each["cpu_us"] for each in cases[case]) for name, cases in found.items()}
        for name, rate in rates.items():
            share, cheap = rate / rates["bare"], costs["bare"] / costs[name]
            print(f"  {name:28} {rate:9.0f}   {share:5.2f}   {costs[name]:8.1f}   {cheap:5.2f}")
        kept[case.connections] = rates[AUDITED] / rates["bare"]
        print()
    if min(kept.values()) < options.least:
        print(
            f"{AUDITED} keeps {min(kept.values()):.2f} of the bare gateway, less than {options.least}", file=sys.stderr
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Cost of metrics, audit log and traces: calls per second of a gateway with and without them.

    python -m bench.telemetry [--turns 5] [--seconds 1.0] [--least 0.8]

Each variant is compared with the gateway that has none. All run at the same time with the same server and are
measured in turns, so that a disturbance affects all of them. The median of the turns counts. Needs a C compiler and
`toolway[otel]`. Exit code 1 if metrics with an audit log keep less than `--least` of the rate without.
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

from bench import fast_peers, machine
from bench.install import build_tools
from bench.launch import Launch, LaunchContext
from bench.measure import Gateway, gateway, measure, servers, wait_until_ready
from bench.peers import Peer
from bench.plan import Case, Pace, ServerGroup

NO_METRICS: Final = {"metrics": False, "calls": False}
METRICS: Final = {"metrics": True, "calls": False}
CASES: Final = (Case("echo", "modern", 16), Case("echo", "modern", 64))
AUDITED: Final = "metrics + audit (SQLite)"


def variants(collector: str) -> dict[str, dict[str, Any]]:
    """Return the `toolway` config block of each variant."""

    def with_traces(share: float) -> dict[str, Any]:
        return {"telemetry": {**METRICS, "traces": {"endpoint": collector, "sample": share}}}

    return {
        "bare": {"telemetry": NO_METRICS},
        "metrics": {"telemetry": METRICS},
        AUDITED: {"telemetry": METRICS, "audit": {"to": "sqlite"}},
        "metrics + traces of 1 %": with_traces(0.01),
        "metrics + traces of 100 %": with_traces(1.0),
        "default settings": {},
        "default settings + audit": {"audit": {"to": "sqlite"}},
    }


def launch_variant(block: Mapping[str, Any], context: LaunchContext) -> Launch:
    launch = fast_peers.toolway(context)
    file = context.folder / "servers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "toolway": block}))
    return replace(launch, env={**launch.env, "OTEL_METRICS_EXPORTER": "none"})


@contextlib.contextmanager
def run_collector() -> Iterator[str]:
    """Run a trace collector that discards everything, in a separate process."""
    command = machine.pin_to_core([sys.executable, "-m", "bench.telemetry", "--collect"], machine.core_for("load"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def collect() -> None:
    class Collector(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def measure_variants(pace: Pace) -> dict[str, dict[Case, list[dict[str, Any]]]]:
    with run_collector() as collector, servers(ServerGroup("http")) as upstreams, contextlib.ExitStack() as stack:
        ready: dict[str, Gateway] = {}
        for name, block in variants(collector).items():
            peer = Peer("toolway", name, partial(launch_variant, block), "")
            ready[name] = stack.enter_context(gateway(peer, upstreams))
        for one in ready.values():
            wait_until_ready(one, Case("echo", "modern", 1))
        found: dict[str, dict[Case, list[dict[str, Any]]]] = {name: {case: [] for case in CASES} for name in ready}
        for _ in range(pace.turns):
            for case in CASES:
                for name, one in ready.items():
                    figures = measure(one, case, pace)
                    if figures["errors"] or not figures.get("rate"):
                        raise SystemExit(f"{name}: {figures.get('first_error') or 'no result'}")
                    found[name][case].append(figures)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--least", type=float, default=0.8, help="required rate of metrics + audit, as a share of bare")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        collect()
        return
    build_tools()
    machine.leave_gateway_core()
    found = measure_variants(Pace(turns=options.turns, warm=0.3, seconds=options.seconds))
    remaining = {}
    for case in CASES:
        print(f"echo × {case.connections}          calls/s   share   CPU-µs per call   share of CPU")
        rates = {name: statistics.median(each["rate"] for each in cases[case]) for name, cases in found.items()}
        costs = {name: statistics.median(each["cpu_us"] for each in cases[case]) for name, cases in found.items()}
        for name, rate in rates.items():
            share, cheap = rate / rates["bare"], costs["bare"] / costs[name]
            print(f"  {name:28} {rate:9.0f}   {share:5.2f}   {costs[name]:8.1f}   {cheap:5.2f}")
        remaining[case.connections] = rates[AUDITED] / rates["bare"]
        print()
    if min(remaining.values()) < options.least:
        print(
            f"{AUDITED} keeps {min(remaining.values()):.2f} of the bare gateway, less than {options.least}",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

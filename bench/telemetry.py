"""Cost of metrics, audit log and traces: calls per second of a gateway with and without them.

    python -m bench.telemetry [--turns 5] [--seconds 1.0] [--least 0.8]
    python -m bench.telemetry --in-process [--turns 20]

Each variant is compared with the gateway that has none. All run at the same time with the same server and are
measured in turns, so a disturbance affects all of them. The median of the turns counts. Needs a C compiler and
`toolway[otel]`. Exit code 1 if metrics with an audit log keep less than `--least` of the rate without.

`--in-process` measures the CPU time of all threads without sockets, as `bench.in_process` does. No compiler needed,
and the cheapest turn counts, so the machine need not be quiet. Every call is UNSAFE, so with an audit log every call
waits for its intent on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeAlias
from unittest import mock

from bench import fast_peers, in_process, machine
from bench.install import build_tools
from bench.launch import Launch, LaunchContext
from bench.measure import Gateway as MeasuredGateway
from bench.measure import gateway, measure, servers, wait_until_ready
from bench.peers import Peer
from bench.plan import Case, Pace, ServerGroup
from toolway.gateway.gateway import Gateway
from toolway.gateway.principals import FileApiKeyStore
from toolway.http.dialer import Dialer
from toolway.hub.core import HubCore
from toolway.hub.core_options import Reporting
from toolway.telemetry.logging import LogSink
from toolway.telemetry.metrics import Metrics

NO_METRICS: Final = {"metrics": False, "calls": False}
METRICS: Final = {"metrics": True, "calls": False}
CASES: Final = (Case("echo", "modern", 16), Case("echo", "modern", 64))
Found: TypeAlias = dict[str, dict[Case, list[dict[str, Any]]]]  # figures of each turn, by variant and case
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


def measure_variants(pace: Pace, launches: Mapping[str, Callable[[LaunchContext], Launch]]) -> Found:
    """Measure a gateway for each of `launches`, in turns. Exits if a call fails."""
    with servers(ServerGroup("http")) as upstreams, contextlib.ExitStack() as stack:
        ready: dict[str, MeasuredGateway] = {}
        for name, launch in launches.items():
            ready[name] = stack.enter_context(gateway(Peer("toolway", name, launch, ""), upstreams))
        for one in ready.values():
            wait_until_ready(one, Case("echo", "modern", 1))
        found: Found = {name: {case: [] for case in CASES} for name in ready}
        for _ in range(pace.turns):
            for case in CASES:
                for name, one in ready.items():
                    figures = measure(one, case, pace)
                    if figures["errors"] or not figures.get("rate"):
                        raise SystemExit(f"{name}: {figures.get('first_error') or 'no result'}")
                    found[name][case].append(figures)
        return found


# -- in process --------------------------------------------------------------------------------------------------------

CALLS_PER_TURN: Final = 10  # of each client
IN_PROCESS: Final = {  # metrics, dashboard, share of traced calls, audit log
    "off": (False, False, None, ""),
    "metrics": (True, False, None, ""),
    "metrics + dashboard": (True, True, None, ""),
    "… + traces of 1 %": (True, True, 0.01, ""),
    "… + audit (SQLite)": (True, True, None, "audit.sqlite"),
    "… + audit (JSONL)": (True, True, None, "audit.jsonl"),
}


class Variant:
    """A gateway without sockets, and its clients."""

    def __init__(self, hub: HubCore, gateway: Gateway, token: str, clients: int) -> None:
        self._hub = hub
        self._clients = [in_process.Client(gateway, token) for _ in range(clients)]

    async def measure(self) -> tuple[float, float]:
        """Return the CPU-µs per call, and the µs per call until the last result."""
        calls, cpu, began = CALLS_PER_TURN * len(self._clients), time.process_time(), time.perf_counter()
        await asyncio.gather(*map(self._call, self._clients))
        seconds = time.perf_counter() - began
        if self._hub.audit_writer is not None:
            await self._hub.audit_writer.flush()  # what is stored later counts too
        return (time.process_time() - cpu) / calls * 1e6, seconds / calls * 1e6

    async def _call(self, client: in_process.Client) -> None:
        request = client.request("echo")
        for _ in range(CALLS_PER_TURN):
            await client.send(request)


async def start_variant(
    stack: contextlib.AsyncExitStack, folder: Path, clients: int, settings: tuple[bool, bool, float | None, str]
) -> Variant:
    metrics, dashboard, sample, audit = settings
    keys = FileApiKeyStore(folder / "keys.json", "tw_" + "a" * 40)
    token, _ = keys.create_key_sync("bench", None, False, 0.0)
    servers = {"one": "http://127.0.0.1:9/mcp"}
    hub = await stack.enter_async_context(
        HubCore(servers, catalog_storage=None, reporting=Reporting(folder / audit if audit else None))
    )
    gateway = Gateway(hub, b"k" * 32, keys, metrics=Metrics() if metrics else None)
    hub.instrumentation.add_sink(LogSink(calls=dashboard))
    if not dashboard:
        gateway.stop_recording()
    if sample is not None:
        from opentelemetry.sdk.trace import TracerProvider

        hub.enable_tracing(TracerProvider(), sample)
    await gateway.listen("127.0.0.1", 0)
    await hub.servers.wait_ready()
    return Variant(hub, gateway, token, clients)


async def measure_in_process(clients: int, turns: int) -> dict[str, list[tuple[float, float]]]:
    """Return CPU-µs and µs per call of each variant and turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in IN_PROCESS}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        mock.patch.object(Dialer, "dial", in_process._dial),
    ):
        async with contextlib.AsyncExitStack() as stack:
            variants = {}
            for number, (name, settings) in enumerate(IN_PROCESS.items()):
                own = Path(folder, str(number))
                own.mkdir()
                variants[name] = await start_variant(stack, own, clients, settings)
                await variants[name].measure()  # warms up
            for _ in range(turns):
                for name, variant in variants.items():
                    found[name].append(await variant.measure())
    return found


def report_in_process(turns: int) -> None:
    import uvloop

    for clients in (16, 64):
        found = uvloop.run(measure_in_process(clients, turns))
        best = {name: [min(each) for each in zip(*all_turns, strict=True)] for name, all_turns in found.items()}
        off_cpu, off_time = best["off"]
        print(f"echo × {clients}, in process     CPU-µs per call   more than off   share of CPU   share of calls/s")
        for name, (cpu, elapsed) in best.items():
            print(f"  {name:26} {cpu:15.1f} {cpu - off_cpu:15.1f} {off_cpu / cpu:14.2f} {off_time / elapsed:18.2f}")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--least", type=float, default=0.8, help="required rate of metrics + audit, as a share of bare")
    parser.add_argument("--in-process", action="store_true", help="measure CPU time without sockets")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        collect()
        return
    if options.in_process:
        report_in_process(options.turns)
        return
    build_tools()
    machine.leave_gateway_core()
    with run_collector() as collector:
        launches = {name: partial(launch_variant, block) for name, block in variants(collector).items()}
        found = measure_variants(Pace(turns=options.turns, warm=0.3, seconds=options.seconds), launches)
    report(found, "bare", AUDITED, options.least)


def report(found: Found, off: str, judged: str, least: float, *, by_cheapest: bool = False) -> None:
    """Print each variant next to the variant `off`. Exit with code 1 if `judged` keeps less than `least` of its rate.

    By default the median of all turns counts. With `by_cheapest`, the CPU time of the cheapest turn does, because
    disturbances only add time.
    """
    remaining = []
    for case in CASES:
        print(f"echo × {case.connections}          calls/s   share   CPU-µs per call   share of CPU")
        rates = {name: statistics.median(each["rate"] for each in cases[case]) for name, cases in found.items()}
        average = min if by_cheapest else statistics.median
        costs = {name: average([each["cpu_us"] for each in cases[case]]) for name, cases in found.items()}
        for name, rate in rates.items():
            share, cheap = rate / rates[off], costs[off] / costs[name]
            print(f"  {name:28} {rate:9.0f}   {share:5.2f}   {costs[name]:8.1f}   {cheap:5.2f}")
        remaining.append(costs[off] / costs[judged] if by_cheapest else rates[judged] / rates[off])
        print()
    if min(remaining) < least:
        print(f"{judged} keeps {min(remaining):.2f} of {off}, less than {least}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

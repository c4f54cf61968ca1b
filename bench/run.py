"""The benchmark: all peers with the same servers, in turns, with the cost of each call.

    python -m bench.run                         complete run: about 25 minutes on an otherwise idle machine
    python -m bench.run --resume                continue an interrupted run
    python -m bench.run --only NAME,NAME        measure these peers again, together with the fast peers; keep the rest
    python -m bench.run --parts "http,library"  run some parts
    python -m bench.run --publish               no run: write bench/published.json, docs/benchmarks.md and its chart

Writes `bench/results/latest.jsonl` during the run, and `latest.json` and `latest.svg` at the end. Prints tables and
verdicts. A peer that cannot be installed or does not respond is reported.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import journal, library, machine, optional_parts, profiling, report, verdicts
from bench.cold import cold
from bench.compare_peers import Recorder, one_by_one, side_by_side
from bench.growth import growth
from bench.install import ROOT, InstallError, build_tools, install
from bench.journal import Journal, Row
from bench.page import publish
from bench.peers import PEERS, Peer
from bench.plan import FAST_PACE, GROUPS, OTHER_PACE, Pace, select_parts, select_peers

OUT = ROOT / "bench" / "results" / "latest.jsonl"
OWN_PARTS: dict[str, Callable[[Pace], Iterator[Row]]] = {
    "library": library.library,
    "growth": growth,
    "cold": cold,
    "clients": library.clients,
    "options": optional_parts.optional_parts,
    "profile": profiling.profile,
}


def main() -> None:
    options = _options()
    if not options.publish:
        _run(options)
    result = journal.result(options.out)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    options.out.with_suffix(".svg").write_text(report.chart(result))
    print(report.tables(result))
    print(f"\n## Verdicts\n\n{verdicts.table(result)}")
    if options.publish:
        publish(result)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", action="store_true", help="continue the run in the file")
    parser.add_argument("--only", default="", metavar="NAMES", help="measure these peers again, and the fast peers")
    parser.add_argument("--parts", default="", metavar="PARTS", help="http, stdio, 18 http, …, library, growth, cold")
    parser.add_argument("--turns", type=int, default=FAST_PACE.turns, metavar="N", help="turns of the fast peers")
    parser.add_argument("--seconds", type=float, default=FAST_PACE.seconds, metavar="S", help="seconds per round")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    parser.add_argument("--publish", action="store_true", help="write the docs page from the run in the file")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> None:
    began = time.monotonic()
    parts, chosen = select_parts(options.parts), select_peers(PEERS, options.only)
    build_tools()
    peers, absent = _install(chosen)
    machine.leave_gateway_core()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # to stop started processes too
    if not (options.resume or options.only or options.parts):
        _keep_last_run(options.out)
    now = datetime.datetime.now(datetime.UTC)
    pace = Pace(options.turns, FAST_PACE.warm, options.seconds, FAST_PACE.longest)
    about = {
        "date": now.strftime("%Y-%m-%d"),
        "machine": machine.describe_machine(),
        "settings": {"swift": pace.__dict__, "others": OTHER_PACE.__dict__},
        "peers": {peer.name: _about(peer) for peer in peers},
        "absent": absent,
    }
    run_journal = Journal(options.out, now.strftime("%Y-%m-%dT%H:%M:%S"), about, resume=options.resume)
    _measure(parts, peers, pace, Recorder(run_journal), own=not options.only or "toolway" in options.only)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes\n", flush=True)


def _measure(parts: list[str], peers: list[Peer], pace: Pace, recorder: Recorder, own: bool) -> None:
    """Measure the fast peers first, then Toolway's own parts, and the slow peers last."""
    groups = [behind for behind in GROUPS if str(behind) in parts]
    for behind in groups:
        side_by_side(behind, [peer for peer in peers if peer.fast], pace, recorder)
    for part in parts:
        if own and part in OWN_PARTS:
            recorder.record_part(part, OWN_PARTS[part](pace))
    for behind in groups:
        one_by_one(behind, [peer for peer in peers if not peer.fast], OTHER_PACE, recorder)


def _keep_last_run(out: Path) -> None:
    """Keep the last run next to the file of a new complete run."""
    if out.exists():
        out.replace(out.with_suffix(".before.jsonl"))


def _install(chosen: list[Peer]) -> tuple[list[Peer], dict[str, str]]:
    available, absent = [], {}
    for peer in chosen:
        try:
            if peer.package:
                install(peer.home, peer.package)
            available.append(peer)
        except InstallError as error:
            absent[peer.name] = str(error).splitlines()[-1][:200]
            print(f"{peer.name}: not installable here: {absent[peer.name]}", flush=True)
    return available, absent


def _about(peer: Peer) -> dict[str, str]:
    return {"title": peer.title, "version": peer.version, "given": peer.given}


if __name__ == "__main__":
    main()

"""The benchmark: all peers before the same servers, in turns, and what each call cost.

    python -m bench.run                         all of it: about 25 minutes on a machine that does nothing else
    python -m bench.run --resume                go on with a run that was ended
    python -m bench.run --only NAME,NAME        measure these again, and the swift beside them; the rest stays as it was
    python -m bench.run --parts "http,library"  some parts of it
    python -m bench.run --publish               no run: bench/published.json, docs/benchmarks.md and its picture

Writes `bench/results/latest.jsonl` line by line while it runs, and `latest.json` and `latest.svg` beside it; prints
tables and verdicts. A peer that cannot be installed or does not answer is named.
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

from bench import journal, library, machine, report, verdicts
from bench.cold import cold
from bench.groups import Told, one_by_one, side_by_side
from bench.growth import growth
from bench.install import ROOT, InstallError, build_tools, install
from bench.journal import Journal, Row
from bench.page import publish
from bench.peers import PEERS, Peer
from bench.plan import GROUPS, OTHERS, SWIFT, Pace, chosen_parts, chosen_peers

OUT = ROOT / "bench" / "results" / "latest.jsonl"
OWN: dict[str, Callable[[Pace], Iterator[Row]]] = {
    "library": library.library,
    "growth": growth,
    "cold": cold,
    "clients": library.clients,
}


def main() -> None:
    options = _options()
    if not options.publish:
        _run(options)
    result = journal.result(options.out)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    options.out.with_suffix(".svg").write_text(report.picture(result))
    print(report.tables(result))
    print(f"\n## Verdicts\n\n{verdicts.table(result)}")
    if options.publish:
        publish(result)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", action="store_true", help="go on with the run in the file")
    parser.add_argument("--only", default="", metavar="NAMES", help="measure these again, with the swift beside them")
    parser.add_argument("--parts", default="", metavar="PARTS", help="http, stdio, 18 http, …, library, growth, cold")
    parser.add_argument("--turns", type=int, default=SWIFT.turns, metavar="N", help="of the swift")
    parser.add_argument("--seconds", type=float, default=SWIFT.seconds, metavar="S", help="of a round")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    parser.add_argument("--publish", action="store_true", help="write the page from the run in the file")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> None:
    began = time.monotonic()
    parts, chosen = chosen_parts(options.parts), chosen_peers(PEERS, options.only)
    build_tools()
    peers, absent = _install(chosen)
    machine.stand_aside()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended, too
    if not (options.resume or options.only or options.parts):
        _put_away(options.out)
    now = datetime.datetime.now(datetime.UTC)
    swift = Pace(options.turns, SWIFT.warm, options.seconds, SWIFT.longest)
    about = {
        "date": now.strftime("%Y-%m-%d"),
        "machine": machine.about(),
        "settings": {"swift": swift.__dict__, "others": OTHERS.__dict__},
        "peers": {peer.name: _about(peer) for peer in peers},
        "absent": absent,
    }
    kept = Journal(options.out, now.strftime("%Y-%m-%dT%H:%M:%S"), about, resume=options.resume)
    _measure(parts, peers, swift, Told(kept), own=not options.only or "toolway" in options.only)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes\n", flush=True)


def _measure(parts: list[str], peers: list[Peer], pace: Pace, told: Told, own: bool) -> None:
    """First what is compared closely; those who need long come last."""
    groups = [behind for behind in GROUPS if str(behind) in parts]
    for behind in groups:
        side_by_side(behind, [peer for peer in peers if peer.swift], pace, told)
    for part in parts:
        if own and part in OWN:
            told.part(part, OWN[part](pace))
    for behind in groups:
        one_by_one(behind, [peer for peer in peers if not peer.swift], OTHERS, told)


def _put_away(out: Path) -> None:
    """A whole run is a new file; the last one is kept beside it."""
    if out.exists():
        out.replace(out.with_suffix(".before.jsonl"))


def _install(chosen: list[Peer]) -> tuple[list[Peer], dict[str, str]]:
    there, absent = [], {}
    for peer in chosen:
        try:
            if peer.package:
                install(peer.home, peer.package)
            there.append(peer)
        except InstallError as error:
            absent[peer.name] = str(error).splitlines()[-1][:200]
            print(f"{peer.name}: not available here: {absent[peer.name]}", flush=True)
    return there, absent


def _about(peer: Peer) -> dict[str, str]:
    return {"title": peer.title, "version": peer.version, "given": peer.given}


if __name__ == "__main__":
    main()

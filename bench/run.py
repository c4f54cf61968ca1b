"""The benchmark: all peers before the same servers, in turns, and what each call cost.

    python -m bench.run [--quick] [--only NAME,NAME] [--behind KIND,KIND] [--repeats 3] [--seconds 3] [--out FILE]
    python -m bench.run --report FILE       (no run: the page docs/benchmarks.md and its picture from a result file)

Prints a table; writes JSON and a picture beside it. A peer that cannot be installed or does not answer is named.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import machine, report
from bench.install import ROOT, InstallError, build_tools, install
from bench.measure import Behind, Case, Figures, NotReadyError, gateway, idle_memory, measure, servers, wait_until_good
from bench.peers import PEERS, Peer, Server
from bench.wire import Era

MANY = 18
NUMBERS = ("rate", "p50", "p99", "max", "cpu_us", "rss_mb", "seconds", "mb")


def main() -> None:
    options = _options()
    if options.report:
        report.write_page(json.loads(options.report.read_text()))
        return
    build_tools()
    chosen = [peer for peer in PEERS if not options.only or peer.name in options.only.split(",")]
    peers, absent = _install(chosen)
    machine.stand_aside()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended, too
    rows: list[Figures] = []
    result: Figures = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": machine.about(),
        "settings": {name: getattr(options, name) for name in ("repeats", "seconds", "warm", "quick")},
        "peers": {peer.name: _about(peer) for peer in peers},
        "absent": absent,
    }
    for turn in range(options.repeats):
        for behind in _groups(options.quick, options.behind):
            with servers(behind) as there:
                for peer in peers:
                    if behind.count > 1 and not peer.many:
                        continue
                    for row in _one_peer(peer, behind, there, options):
                        rows.append({"turn": turn, "peer": peer.name, "behind": str(behind), **row})
                        print(report.line(rows[-1]), flush=True)
        _keep(result, rows, options.out)
    print(report.tables(result))


def _keep(result: Figures, rows: list[Figures], out: Path) -> None:
    """After every turn: a run takes long, and may be broken off."""
    result["rows"] = list(medians(rows))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    out.with_suffix(".svg").write_text(report.picture(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn, few cases, one second each")
    parser.add_argument("--only", default="", metavar="NAMES")
    parser.add_argument("--behind", default="", metavar="KINDS", help="http, stdio, 18 http, 18 stdio, http modern, …")
    parser.add_argument("--repeats", type=int, metavar="N")
    parser.add_argument("--seconds", type=float, metavar="S")
    parser.add_argument("--warm", type=float, default=0.5, metavar="S")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "latest.json", metavar="FILE")
    parser.add_argument("--report", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    return options


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


def _groups(quick: bool, only: str) -> list[Behind]:
    plain = [Behind("http"), Behind("stdio"), Behind("http", MANY)]
    more = [Behind("stdio", MANY), Behind("http", era="handshake"), Behind("http", era="modern")]
    if only:
        return [behind for behind in (*plain, *more) if str(behind) in only.split(",")]
    return plain if quick else [*plain, *more]


def _cases(peer: Peer, behind: Behind, quick: bool) -> Iterator[Case]:
    eras: tuple[Era, ...] = peer.eras(behind.kind)
    for era in eras:
        if behind.count > 1:
            if era == eras[0]:
                yield from (Case("list", era, connections) for connections in (1, 16))
        elif behind.era != "both":
            if peer.bridges and era != behind.era:
                yield Case("echo", era, 16)
        elif quick:
            yield from (Case("echo", era, 1), Case("echo", era, 16), Case("big", era, 16))
        else:
            yield from (Case(work, era, connections) for work in ("echo", "big") for connections in (1, 16, 64))


def _one_peer(peer: Peer, behind: Behind, there: tuple[Server, ...], options: argparse.Namespace) -> Iterator[Figures]:
    cases = list(_cases(peer, behind, options.quick))
    if not cases:
        return
    try:
        with gateway(peer, there) as one:
            first = Case("echo", cases[0].era, 1)
            yield {"work": "first call", "era": first.era, "connections": 1, "seconds": wait_until_good(one, first)}
            yield {"work": "memory", "era": first.era, "connections": 1, "mb": idle_memory(one, cases[0])}
            for case in cases:
                yield {**case.__dict__, **measure(one, case, options.warm, options.seconds)}
    except (NotReadyError, OSError, subprocess.CalledProcessError) as error:
        yield {"work": "first call", "era": cases[0].era, "connections": 1, "failed": str(error)}


def medians(rows: list[Figures]) -> Iterator[Figures]:
    """One row for each thing measured: the median of each figure, and all errors."""
    same: dict[tuple[object, ...], list[Figures]] = {}
    for row in rows:
        same.setdefault(tuple(row[key] for key in ("peer", "behind", "work", "era", "connections")), []).append(row)
    for group in same.values():
        row = {key: group[0][key] for key in ("peer", "behind", "work", "era", "connections")}
        for key in NUMBERS:
            values = [one[key] for one in group if one.get(key) is not None]
            if values:
                row[key] = round(statistics.median(values), 4)
        row["errors"] = sum(one.get("errors", 0) for one in group)
        row["all_rates"] = [one["rate"] for one in group if "rate" in one]
        row["said"] = next((said for one in group if (said := one.get("failed") or one.get("first_error"))), "")
        yield row


if __name__ == "__main__":
    main()

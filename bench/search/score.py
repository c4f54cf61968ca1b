"""How well the tool search finds: our methods and other libraries on public sets, in one run.

    python -m bench.search.score                       all methods on all sets (make search-score)
    python -m bench.search.score --only ours,fts5      some methods
    python -m bench.search.score --peers .search/bin/python --write

Other libraries run in their own environment (requirements/search.txt). A method whose packages are missing is
skipped, and the table says so. `--write` puts the table into docs/explanation/search-scores.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.machine import measured_commit
from bench.search.ours import Ids, Searched, rank_fts5, rank_learned, rank_ours
from bench.search.sets import AGENT_LIMITS, SearchSet, load, load_sets, score_queries, score_tasks
from toolway.search import ranking

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = ROOT / "docs" / "explanation" / "search-scores.md"
TITLES: Final = {
    "fastmcp": "FastMCP's BM25 transform",
    "bm25s": "bm25s, stems",
    "fts5": "SQLite FTS5, stems, weights",
    "ours": "Toolway, default",
    "minilm": "Toolway + MiniLM",
    "learning": "Toolway + ten earlier calls a tool",
}
CAPS: Final = {  # score that a tool of another server must have to replace the fourth of one server, as a part of it
    "no limit": float("inf"),
    "at most three of five, if another server has 90 % of the score (default)": ranking.CAP_RATIO,
    "at most three of five, always": 0.0,
}
HERE: Final[dict[str, Callable[[SearchSet], Ids | None]]] = {
    "fts5": rank_fts5,
    "ours": rank_ours,
    "learning": rank_learned,
}


def rank_all(method: str, sets: dict[str, SearchSet], peers: Path | None) -> dict[str, Ids | None] | str:
    """Return the ranking of each set by a method, or why there is none."""
    if method in HERE:
        return rank_here(HERE[method], sets)
    if peers is None or not peers.exists():
        return "not installed: make search-score"
    command = [str(peers), "-m", "bench.search.peers", method, *sets]
    path = f"{ROOT}:{ROOT / 'src'}:{ROOT / 'packages' / 'toolway-search-minilm' / 'src'}"
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": path}, timeout=7200)
    if result.returncode != 0:
        return (result.stderr.strip().splitlines() or ["it failed"])[-1]
    found: dict[str, Ids | None] = json.loads(result.stdout.splitlines()[-1])
    return found


def rank_here(method: Callable[[SearchSet], Ids | None], sets: dict[str, SearchSet]) -> dict[str, Ids | None]:
    """Return the ranking of each set by a method of this process."""
    return {key: method(chosen) for key, chosen in sets.items()}


def cells(sets: dict[str, SearchSet], ranked: dict[str, Ids | None]) -> list[str]:
    """Return the scores of one method, one cell for each set."""
    return [_cell(chosen, ranked[key]) for key, chosen in sets.items()]


def _heads(sets: dict[str, SearchSet]) -> list[str]:
    agents = " / ".join(f"top {limit}" for limit in AGENT_LIMITS)
    return [f"{chosen.name}, {agents if chosen.tasks else 'R@1 / R@5 / NDCG@5'}" for chosen in sets.values()]


def _cell(chosen: SearchSet, found: Ids | None) -> str:
    if found is None:
        return "–"
    if chosen.tasks:
        return " / ".join(_short(score_tasks(found, chosen, limit)) for limit in AGENT_LIMITS)
    return " / ".join(map(_short, score_queries(found, chosen.queries)))


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def learning_by_use(sets: dict[str, SearchSet]) -> list[str]:
    """Return lines on tools with and without earlier calls: those without must not sink."""
    meta = sets["meta"]
    used = frozenset(tool["id"] for number, tool in enumerate(meta.tools) if number % 3 == 0)
    searched = Searched(meta.tools)
    parts = {
        "the tools that were called": [query for query in meta.queries if query["relevant"][0][0] in used],
        "the tools that were not": [query for query in meta.queries if query["relevant"][0][0] not in used],
    }
    before = {name: score_queries(searched.rank(queries), queries)[1] for name, queries in parts.items()}
    searched.learn(load("metatool")["dev"], 10, used)
    after = {name: score_queries(searched.rank(queries), queries)[1] for name, queries in parts.items()}
    return [f"{name}: {_short(before[name])} → {_short(after[name])}" for name in parts]


def caps(sets: dict[str, SearchSet]) -> list[str]:
    """Return a table of the limit on results of one server: off, as it is, and strict. By words alone."""
    several = {key: chosen for key, chosen in sets.items() if len({tool["server"] for tool in chosen.tools}) > 1}
    if not several:
        return []
    lines = [f"| results of one server | {' | '.join(_heads(several))} |", "|---" * (len(several) + 1) + "|"]
    default = ranking.CAP_RATIO
    for name, ratio in CAPS.items():
        ranking.CAP_RATIO = ratio  # type: ignore[misc] # a constant, changed to compare
        lines.append(f"| {name} | {' | '.join(cells(several, rank_here(rank_ours, several)))} |")
    ranking.CAP_RATIO = default  # type: ignore[misc] # a constant, changed to compare
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TITLES), help="methods, separated by commas")
    parser.add_argument("--sets", default="", help="sets, separated by commas")
    parser.add_argument("--peers", type=Path, default=ROOT / ".search" / "bin" / "python")
    parser.add_argument("--write", action="store_true", help="write the table into the documentation")
    options = parser.parse_args()
    sets = load_sets()
    if options.sets:
        sets = {key: sets[key] for key in options.sets.split(",")}
    heads = _heads(sets)
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    print(*lines, sep="\n", flush=True)
    for method in options.only.split(","):
        ranked = rank_all(method, sets, options.peers)
        row = [f"skipped: {ranked}"] if isinstance(ranked, str) else cells(sets, ranked)
        lines.append(f"| {TITLES[method]} | {' | '.join(row)} |")
        print(lines[-1], flush=True)
    if "learning" in options.only and "meta" in sets:
        lines += ["", "MetaTool R@5 if every third tool has ten earlier calls:", ""]
        lines += [f"- {line}" for line in learning_by_use(sets)]
        print(*lines[-5:], sep="\n")
    if "ours" in options.only and (found := caps(sets)):
        lines += [
            "",
            "The default with other limits on the results of one server, on the sets with several servers:",
            "",
        ]
        lines += found
        print(*lines[-len(found) - 3 :], sep="\n")
    if options.write:
        _write(lines)


def _write(lines: list[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- scores -->\n", "<!-- end of scores -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        sys.exit(f"{PAGE.name} has no place for the scores")
    lines = [f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {measured_commit()}.", "", *lines]
    PAGE.write_text(head + begin + "\n" + "\n".join(lines) + "\n\n" + end + tail, encoding="utf-8")


if __name__ == "__main__":
    main()

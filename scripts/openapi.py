"""Load every real OpenAPI document there is: what becomes of its operations, how long it takes, and how much memory.

    python scripts/openapi.py             the documents of ../shared/openapi and GitHub's (npm, into build/openapi)
    python scripts/openapi.py FILE…       these

Each is loaded in a process of its own. Exit code 1 where one does not load, a tool is not valid, or a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.openapi import real  # noqa: E402  it is found by the line above

PACKAGE = "@octokit/openapi@23.0.2"
MOST_SECONDS = 10.0
MOST_MEGABYTES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one)))
        return
    if not options.files:
        install()
    files = options.files or real.documents()
    rows = [(path, in_a_process(path)) for path in files]
    show(rows)
    sys.exit(any(problems(row) for _, row in rows))


def install() -> None:
    """GitHub's document, once."""
    if not real.GITHUB.is_file():
        real.INSTALLED.mkdir(parents=True, exist_ok=True)
        command = [
            "npm",
            "install",
            "--silent",
            "--no-save",
            "--ignore-scripts",
            "--prefix",
            str(real.INSTALLED),
            PACKAGE,
        ]
        if subprocess.run(command, check=False).returncode:
            print("GitHub's document cannot be installed here: it is left out", file=sys.stderr)


def measure(path: Path) -> dict[str, Any]:
    """Loading alone, before anything else is loaded or done."""
    from toolway.openapi.load import load

    data = path.read_bytes()
    begun, used = time.perf_counter(), time.process_time()
    document = load(data, where=path.name)
    clock, processor = time.perf_counter() - begun, time.process_time() - used
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sizes = sorted(len(json.dumps(operation.tool)) for operation in document.operations)
    return {
        "dialect": document.dialect,
        "bytes": len(data),
        "operations": len(document.operations) + len(document.set_aside),
        "tools": len(document.operations),
        "aside": [f"{each.method} {each.path}: {each.reason}" for each in document.set_aside],
        "clock": clock,
        "processor": processor,
        "memory": memory,
        "median": sizes[len(sizes) // 2] if sizes else 0,
        "largest": sizes[-1] if sizes else 0,
        "flaws": real.flaws(document),
    }


def in_a_process(path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def problems(row: dict[str, Any]) -> list[str]:
    if "failed" in row:
        return [row["failed"]]
    late = [f"{row['processor']:.1f} s"] if row["processor"] > MOST_SECONDS else []
    large = [f"{row['memory']} MB"] if row["memory"] > MOST_MEGABYTES else []
    return [*late, *large, *row["flaws"]]


def show(rows: list[tuple[Path, dict[str, Any]]]) -> None:
    print(f"{'document':28}  ver  operations  tools  aside   clock    cpu    peak  tool: median  largest")
    for path, row in rows:
        if "failed" not in row:
            print(
                f"{path.name:28}  {row['dialect']}  {row['operations']:10}  {row['tools']:5}  {len(row['aside']):5}"
                f"  {row['clock']:4.2f} s {row['processor']:4.2f} s  {row['memory']:3} MB"
                f"  {row['median'] / 1000:8.1f} KB  {row['largest'] / 1000:4.1f} KB"
            )
        for each in (*row.get("aside", ()), *problems(row))[:10]:
            print(f"    {each}")
    good = [row for _, row in rows if "failed" not in row]
    operations, tools = (sum(row[word] for row in good) for word in ("operations", "tools"))
    aside = sum(len(row["aside"]) for row in good)
    print(f"{len(good)} of {len(rows)} documents, {operations} operations: {tools} tools, {aside} set aside")


if __name__ == "__main__":
    main()

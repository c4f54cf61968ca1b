"""Load real OpenAPI documents and print their tools, load time and memory.

    python scripts/openapi.py             the documents of ../shared/openapi and GitHub's (npm, into build/openapi)
    python scripts/openapi.py FILE…       these

Each document is loaded in a separate process. Exit code 1 if one does not load, a tool is invalid, or a
limit is exceeded.
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

from tests.parts.openapi import real_documents  # noqa: E402  needs the path set above

PACKAGE = "@octokit/openapi@23.0.2"
MAX_SECONDS = 10.0
MAX_MEGABYTES = 500


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
    files = options.files or real_documents.documents()
    rows = [(path, measure_in_process(path)) for path in files]
    show(rows)
    sys.exit(any(problems(row) for _, row in rows))


def install() -> None:
    """Install GitHub's document, unless it is already there."""
    if not real_documents.GITHUB.is_file():
        real_documents.INSTALLED.mkdir(parents=True, exist_ok=True)
        command = [
            "npm",
            "install",
            "--silent",
            "--no-save",
            "--ignore-scripts",
            "--prefix",
            str(real_documents.INSTALLED),
            PACKAGE,
        ]
        if subprocess.run(command, check=False).returncode:
            print("GitHub's document cannot be installed here and is skipped", file=sys.stderr)


def measure(path: Path) -> dict[str, Any]:
    """Load a document and return its figures; nothing else is imported before."""
    from toolway.parts.openapi.document.loader import load_document

    data = path.read_bytes()
    started, cpu_before = time.perf_counter(), time.process_time()
    document = load_document(data, source=path.name)
    clock, processor = time.perf_counter() - started, time.process_time() - cpu_before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sizes = sorted(len(json.dumps(operation.tool)) for operation in document.operations)
    return {
        "dialect": document.dialect,
        "bytes": len(data),
        "operations": len(document.operations) + len(document.skipped),
        "tools": len(document.operations),
        "skipped": [f"{each.method} {each.path}: {each.reason}" for each in document.skipped],
        "clock": clock,
        "processor": processor,
        "memory": memory,
        "median": sizes[len(sizes) // 2] if sizes else 0,
        "largest": sizes[-1] if sizes else 0,
        "flaws": real_documents.flaws(document),
    }


def measure_in_process(path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def problems(row: dict[str, Any]) -> list[str]:
    if "failed" in row:
        return [row["failed"]]
    late = [f"{row['processor']:.1f} s"] if row["processor"] > MAX_SECONDS else []
    large = [f"{row['memory']} MB"] if row["memory"] > MAX_MEGABYTES else []
    return [*late, *large, *row["flaws"]]


def show(rows: list[tuple[Path, dict[str, Any]]]) -> None:
    print(f"{'document':28}  ver  operations  tools  skip.   clock    cpu    peak  tool: median  largest")
    for path, row in rows:
        if "failed" not in row:
            print(
                f"{path.name:28}  {row['dialect']}  {row['operations']:10}  {row['tools']:5}  {len(row['skipped']):5}"
                f"  {row['clock']:4.2f} s {row['processor']:4.2f} s  {row['memory']:3} MB"
                f"  {row['median'] / 1000:8.1f} KB  {row['largest'] / 1000:4.1f} KB"
            )
        for each in (*row.get("skipped", ()), *problems(row))[:10]:
            print(f"    {each}")
    good = [row for _, row in rows if "failed" not in row]
    operations, tools = (sum(row[word] for row in good) for word in ("operations", "tools"))
    skipped = sum(len(row["skipped"]) for row in good)
    print(f"{len(good)} of {len(rows)} documents, {operations} operations: {tools} tools, {skipped} skipped")


if __name__ == "__main__":
    main()

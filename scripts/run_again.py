"""Runs tests that failed in a long run again, alone: `python scripts/run_again.py CACHE_FOLDER`.

Exits with 0 if at most three tests had failed and each passes three times in a row. They are printed, and kept in
`build/unstable.txt`, because such a test shows a fault: of the test, or of what it tests. More failed tests, or one
that fails again, are a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

MAX_TESTS: Final = 3
TIMES: Final = 3
UNSTABLE: Final = Path("build/unstable.txt")


def main(cache: Path) -> int:
    try:
        failed = sorted(json.loads((cache / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return 1
    if not 0 < len(failed) <= MAX_TESTS or not all("::" in test for test in failed):
        return 1
    for time in range(1, TIMES + 1):
        print(f"\n--- run {time} of {TIMES} of what failed, alone", flush=True)
        if subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *failed]).returncode:
            return 1
    UNSTABLE.parent.mkdir(exist_ok=True)
    with UNSTABLE.open("a") as file:
        file.writelines(f"{test}\n" for test in failed)
    print(f"\nUNSTABLE, failed once and then passed {TIMES} times alone:", *failed, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

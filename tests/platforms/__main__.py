"""Run the checks on the system of this Python, print a table, and write the result of a full run.

python -m tests.platforms --platform windows [--quick] [--only WORDS] [--jobs 2]
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.platforms.checks import Check, Gap, Message, NotRun, Outcome, all_checks
from tests.platforms.home import Home
from tests.platforms.results import PLATFORMS, Platform, describe_system, write_results


def main() -> int:
    parser = argparse.ArgumentParser(description="Run what users do with Toolway on this system.")
    parser.add_argument("--platform", choices=PLATFORMS, required=True, help="name under which the result is published")
    parser.add_argument("--quick", action="store_true", help="the short form, which writes no result")
    parser.add_argument("--only", default="", metavar="WORDS", help="checks whose group or name has these words")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="checks that run at the same time (2)")
    options = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    platform: Platform = options.platform
    checks = [each for each in all_checks() if options.only.lower() in f"{each.group} {each.name}".lower()]
    checks = [each for each in checks if each.quick or not options.quick]
    began = time.monotonic()
    print(f"{platform}: {describe_system()}; {len(checks)} checks")
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(run_and_print, checks))
    outcomes = [
        run_again(*each) if each[1].result == "fails" else each[1] for each in zip(checks, outcomes, strict=True)
    ]
    count = {
        result: sum(each.result == result for each in outcomes)
        for result in ("works", "message", "gap", "not run", "fails")
    }
    print(", ".join(f"{number} {result}" for result, number in count.items()), f"in {time.monotonic() - began:.0f} s")
    if count["fails"]:
        return 1
    if not options.quick and not options.only:
        print(f"written: {write_results(platform, outcomes).name}")
    return 0


def run_again(check: Check, first: Outcome) -> Outcome:
    """Run a failed check again, alone, to tell a busy machine from a fault."""
    second = run_and_print(check)
    if second.result != "fails":
        second.text += f" (at the second attempt, alone; before it: {first.text[:200]})"
        print(f"UNSTABLE: {check.name}: {second.text}")
    return second


def run_and_print(each: Check) -> Outcome:
    """Run one check in its own home."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="Jörg Ö ")).resolve()
    home = Home(folder)
    outcome = Outcome(each.group, each.name, "works", "")
    try:
        found = each.run(home)
        if isinstance(found, Message):
            outcome.result, outcome.text = "message", found.text
        elif isinstance(found, Gap):
            outcome.result, outcome.text = "gap", found.reason
        elif isinstance(found, NotRun):
            outcome.result, outcome.text = "not run", found.reason
        else:
            outcome.text = found
    except Exception as exc:
        frame = traceback.extract_tb(exc.__traceback__)
        place = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frame) if "platforms" in f.filename), "")
        outcome.result, outcome.text = "fails", f"{place}: {type(exc).__name__}: {exc}"
    finally:
        home.close()
        shutil.rmtree(folder, ignore_errors=True)
    outcome.commands = sorted(home.commands)
    outcome.errors = sorted(home.errors - home.commands)
    outcome.seconds = time.monotonic() - began
    print(f"{outcome.result:<8} {outcome.seconds:5.1f} s  {each.group}: {each.name}: {outcome.text}")
    return outcome


if __name__ == "__main__":
    sys.exit(main())

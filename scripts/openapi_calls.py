"""Call every operation of every real OpenAPI document once, at a mock of its API, and look at what arrives there.

    python scripts/openapi_calls.py             the documents of ../shared/openapi, and GitHub's where it is installed
    python scripts/openapi_calls.py FILE…       these

Exit code 1 where a request is not what its document prescribes, or an answer does not come back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.openapi import real  # noqa: E402  they are found by the line above
from tests.openapi.calling import Report, call_all  # noqa: E402

SHOWN = 5  # of the requests of one document that are not right


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="other arguments for each operation")
    options = parser.parse_args()
    reports: list[Report] = []
    for path in options.files or real.documents():
        reports.append(await call_all(path, seed=options.seed))
        print(reports[-1].line())
        for each in reports[-1].wrong[:SHOWN]:
            print(f"    {each[:300]}")
    total, good = sum(each.operations for each in reports), sum(each.called for each in reports)
    print(f"{good:,} of {total:,} operations were called and arrived as their documents prescribe")
    return int(good != total or not reports)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

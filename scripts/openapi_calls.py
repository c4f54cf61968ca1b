"""Call every operation of real OpenAPI documents once, against a mock API that checks requests.

    python scripts/openapi_calls.py             the documents of ../shared/openapi, and GitHub's if installed
    python scripts/openapi_calls.py FILE…       these

Exit code 1 if a request does not match its document, or a response is not returned.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.parts.openapi import real_documents  # noqa: E402  needs the path set above
from tests.parts.openapi.call_lab import Report, call_all  # noqa: E402

SHOWN = 5  # printed problems per document


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated arguments")
    options = parser.parse_args()
    reports: list[Report] = []
    for path in options.files or real_documents.documents():
        reports.append(await call_all(path, seed=options.seed))
        print(reports[-1].line())
        for each in reports[-1].wrong[:SHOWN]:
            print(f"    {each[:300]}")
    total, good = sum(each.operations for each in reports), sum(each.called for each in reports)
    print(f"{good:,} of {total:,} operations were called with requests that match their documents")
    return int(good != total or not reports)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""Kill a gateway that keeps an audit log, under load, and print what the log knew after each kill.

    python scripts/audit_kill.py [--times 50] [--seed 1] [--to sqlite|jsonl]

Fails where a chain was broken, an effect had no intent, or a call that was cut off was not told as unknown. The short
form is a row of the fault matrix, D3.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is no package of ours

from tests.gateway.killings import Slaughter


async def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 a gateway under load, and look at its audit log.")
    parser.add_argument("--times", type=int, default=50, metavar="N", help="kills (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", choices=("sqlite", "jsonl"), default="sqlite", help="where the log is kept (sqlite)")
    options = parser.parse_args()
    wrong = cut_off = effects = intents = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Slaughter(Path(folder), options.seed, options.to)
        for _ in range(options.times):
            found = await log.kill_once()
            print(found, flush=True)
            wrong += len(found.wrong)
            cut_off += found.open
            effects, intents = found.effects, found.intents
    print(f"{options.times} kills, {effects} effects, {intents} intents, {cut_off} calls cut off")
    print(f"promises broken: {wrong}")
    return 1 if wrong or not cut_off else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

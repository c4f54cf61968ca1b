"""Screenshots of every page of `toolway ui --demo`, light, dark and narrow, into docs/dashboard.

python scripts/dashboard_pictures.py [--seconds 90] [--only home,calls]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "dashboard"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="run time of the demo before the screenshots")
    parser.add_argument("--only", default="", help="names of pages, separated by commas")
    parser.add_argument("--into", type=Path, default=OUTPUT, metavar="DIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [sys.executable, "-m", "toolway.cli", "ui", "--demo", "--no-browser", "--json"]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": home}, cwd=home)
        try:
            assert demo.stdout is not None
            link = json.loads("".join(iter(demo.stdout.readline, "}\n")) + "}")["url"]
            time.sleep(min(options.seconds, 110))  # the link expires after two minutes
            shots = ["node", str(ROOT / "dashboard" / "walk" / "shots.mjs"), link, str(options.into)]
            return subprocess.run([*shots, *([options.only] if options.only else [])], check=False).returncode
        finally:
            demo.terminate()
            demo.wait(30)


if __name__ == "__main__":
    sys.exit(main())

"""Open the pages of the documentation site in Chromium, and take pictures of some, wide and narrow.

    make docs ARGS=pictures    # into build/docs-pictures

Fails if a page asks another host for anything, has an error, is wider than the screen, or if an old address is lost.
"""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path

import moved_pages

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
OUTPUT = ROOT / "build" / "docs-pictures"
PICTURES = (
    "index.md",
    "install.md",
    "howto/gateway.md",
    "howto/sandbox.md",
    "howto/tool-search.md",
    "explanation/upstream-life.md",
)
VERSIONS = b'[{"version": "next", "title": "next", "aliases": ["latest"]}]'


class _Site(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        """Send a file of the site, or the list of versions, which mike makes when it publishes the site."""
        if self.path != "/versions.json":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(VERSIONS)))
        self.end_headers()
        self.wfile.write(VERSIONS)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the browser reports what fails."""


def main() -> int:
    handler = functools.partial(_Site, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = ["node", str(ROOT / "dashboard/walk/docs.mjs"), f"http://127.0.0.1:{server.server_port}", str(OUTPUT)]
        done = subprocess.run(command, input=json.dumps(plan()), text=True, check=False)
        server.shutdown()
    if not done.returncode:
        print(f"no problems; the pictures are in {OUTPUT.relative_to(ROOT)}")
    return done.returncode


def plan() -> dict[str, object]:
    """Return what to open: paths of the site for pictures, all its pages, and old addresses with the new ones."""
    built = [path.relative_to(SITE).parent.as_posix() for path in sorted(SITE.rglob("index.html"))]
    codes = [each for each in built if each.startswith("errors/E-")]
    alike = set(codes[::20])  # one form, so some of them are enough
    old = {moved_pages.folder_of(page) for page in moved_pages.MOVED if "#" not in page}
    return {
        "pictures": [_path(page) for page in PICTURES],
        "pages": [
            "/" if each == "." else f"/{each}/"
            for each in built
            if each not in old and (each not in codes or each in alike)
        ],
        "moved": {_path(before): _path(after) for before, after in moved_pages.MOVED.items()},
    }


def _path(address: str) -> str:
    page, mark, anchor = address.partition("#")
    folder = moved_pages.folder_of(page)
    return (f"/{folder}/" if folder else "/") + mark + anchor


if __name__ == "__main__":
    sys.exit(main())

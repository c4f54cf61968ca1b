"""A real `toolway serve` in a separate process, for tests with clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHUTDOWN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Gateway:
    url: str
    token: str
    pid: int
    environ: dict[str, str]

    def toolway(self, *words: str) -> str:
        """Run a toolway command in the environment of this gateway and return its output."""
        done = subprocess.run(
            [*_TOOLWAY, *words], env=self.environ, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    @property
    def rss_mb(self) -> float:
        """Return its resident memory in MB, or nan without /proc."""
        try:
            text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        except OSError:
            return float("nan")
        return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS"))


_TOOLWAY = (sys.executable, "-m", "toolway.cli")


@contextmanager
def run_gateway(config: dict[str, Any], folder: Path, port: int = 0) -> Iterator[Gateway]:
    """Run a gateway with these servers and its state in `folder`; shut it down at the end. Port 0: a free one."""
    file = folder / "gateway.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    environ = {**os.environ, "TOOLWAY_STATE": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    words = ("serve", "-c", str(file), "--port", str(port), "--json", "--quiet", "--drain-delay", "0")
    with subprocess.Popen([*_TOOLWAY, *words], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            printed = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            token = (folder / "state" / "token").read_text(encoding="ascii").strip()
            yield Gateway(printed["url"], token, process.pid, environ)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(SHUTDOWN_TIMEOUT_S)
        if code:
            raise SystemExit(f"the gateway ended with exit code {code}")

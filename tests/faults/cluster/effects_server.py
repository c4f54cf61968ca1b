"""The fake stdio server, whose lines in the file of effects also record the process, its gateway, and the time.

Run by its path, like the fake itself: the first argument is the folder of the package `toolway`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any


def entry(name: str, effects: str, era: str) -> dict[str, Any]:
    """What a configuration file has of it."""
    from toolway import testing

    package = str(Path(testing.__file__).parents[1])
    words = ["-I", "-S", str(Path(__file__).resolve()), package, "--name", name, "--effects", effects, "--era", era]
    return {"command": sys.executable, "args": words}


def _stub_packages(folder: str) -> None:
    """Make the packages around the fakes known by name only, so nothing of them is run."""
    for name, path in (("toolway", folder), ("toolway.testing", os.path.join(folder, "testing"))):
        package = ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def main() -> None:
    _stub_packages(sys.argv.pop(1))
    from toolway.testing import command_line
    from toolway.testing.server import FakeServer

    gateway = _parent_of(_parent_of(os.getppid()))  # ours is the reaper, which is two processes

    class RecordingServer(FakeServer):
        def record_effect(self, call: Any) -> int:
            call.arguments["call"] = f"{self.info['name']} {gateway} {os.getpid()} {time.monotonic():.6f}"
            return super().record_effect(call)

    command_line.FakeServer = RecordingServer  # type: ignore[attr-defined]
    command_line.main()


if __name__ == "__main__":
    main()

"""Fake server with a child, a grandchild and a detached grandchild: `with_grandchildren PIDS [--detach]`.

Writes the ids of all processes to the file PIDS, one per line, then serves. `grandchild` as first word is such a child.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def start(*words: str, detach: bool = False) -> None:
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    if detach and sys.platform == "win32":
        options["creationflags"] = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
    elif detach:
        options["start_new_session"] = True
    subprocess.Popen([sys.executable, __file__, *words], **options)


def note_pid(pids: str) -> None:
    with Path(pids).open("a") as file:
        file.write(f"{os.getpid()}\n")


if __name__ == "__main__":
    if sys.argv[1] == "grandchild":
        note_pid(sys.argv[2])
        if sys.argv[3:] != ["last"]:
            start("grandchild", sys.argv[2], "last", detach=sys.argv[3:] == ["--detach"])
        time.sleep(600)
    else:
        note_pid(sys.argv[1])
        start("grandchild", *sys.argv[1:], detach="--detach" in sys.argv)
        sys.argv[1:] = []
        from toolway.testing.command_line import main

        main()

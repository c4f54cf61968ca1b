"""docs/tutorial/ says what happens. A page begins with a server of ours, in the background and on a port."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.tutorial import commands_of, fits, outputs_of

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("page", "shown_port", "commands"), [("openapi", "8701", 16), ("sse", "8801", 10)])
def test_the_tutorial_shows_what_happens(page: str, shown_port: str, commands: int, tmp_path: Path) -> None:
    pairs = commands_of(ROOT / "docs" / "tutorial" / f"{page}.md")
    assert len(pairs) == commands
    environ = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOOLWAY_SECRETS": "file",
        "LANG": "C.UTF-8",
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # The page's next command comes when a person has read a line or two.
    patience = f"for n in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && break; sleep 0.1; done"
    first, *rest = [command.replace(shown_port, port) for command, _ in pairs]
    said = outputs_of([f"{first[:-1]} >/dev/null &", patience, *rest], ROOT, environ)
    del said[1]
    assert len(said) == len(pairs), said
    for (command, shown), output in zip(pairs, said, strict=True):
        assert fits(output, [line.replace(shown_port, port) for line in shown]), f"$ {command}\n{output}"

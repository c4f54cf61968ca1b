"""docs/tutorial/login.md says what happens."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.tutorial import commands_of, fits, outputs_of

ROOT = Path(__file__).resolve().parent.parent


def test_login_tutorial_shows_real_output(tmp_path: Path) -> None:
    pairs = commands_of(ROOT / "docs" / "tutorial" / "login.md")
    assert len(pairs) > 10
    browser = f"{sys.executable} {ROOT / 'tests' / 'auth' / 'browser.py'} {tmp_path / 'notes'} %s"
    environ = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BROWSER": browser,
        "TOOLWAY_SECRETS": "file",
        "LANG": "C.UTF-8",
    }
    # The server is in the background: the page's next command comes when a user has read a line or two.
    patience = "for n in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/8901) 2>/dev/null && break; sleep 0.1; done"
    first, *rest = [command for command, _ in pairs]
    said = outputs_of([first, patience, *rest], ROOT, environ)
    del said[1]
    assert len(said) == len(pairs), said
    for (command, shown), output in zip(pairs, said, strict=True):
        assert fits(output, shown), f"$ {command}\n{output}"

"""What differs between systems: the same names everywhere, and nothing of Linux on a macOS that lacks it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import toolway._os
from toolway import _os

FOLDER = Path(toolway._os.__file__).parent
HUB = """
import asyncio, os, pathlib, sys
from toolway import Hub
async def main():
    server = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
    async with Hub({"mcpServers": {"fake": server}}, audit_log=sys.argv[1]) as hub:
        print((await hub.call_tool("fake.echo", {"text": "hallo"})).text, sys.platform, hasattr(os, "fdatasync"))
asyncio.run(main())
print("echo" in pathlib.Path(sys.argv[1]).read_text())
"""


def public_names(file: Path) -> set[str]:
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("system", ["posix", "win32"])
def test_each_system_has_all_names(system: str) -> None:
    assert set(_os.__all__) <= public_names(FOLDER / f"{system}.py")


@pytest.mark.skipif(sys.platform == "win32", reason="needs fcntl")
def test_macos_empties_the_cache_of_the_drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toolway._os import posix

    asked: list[int] = []
    monkeypatch.setattr(posix.sys, "platform", "darwin")
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(posix.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(posix.fcntl, "fcntl", lambda fd, command: asked.append(command))
    with open(tmp_path / "file", "wb") as file:
        posix.sync_data(file.fileno())
    assert asked == [51]


@pytest.mark.skipif(sys.platform != "linux", reason="takes away what only Linux has")
def test_a_hub_with_an_audit_log_needs_nothing_of_linux(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -P {Path(__file__).with_name("as_macos.py")} "$@"\n')
    wrapper.chmod(0o755)
    environ = {**os.environ, "AS_MACOS_PYTHON": str(wrapper), "HOME": str(tmp_path)}
    done = subprocess.run(
        [wrapper, "-c", HUB, tmp_path / "audit.jsonl"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["hallo darwin False", "True"], done.stderr

"""Attacks on `toolway trust lock` and the start of locked packages, with real npm and uv and a registry on loopback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.parts.lock.lab import ENTRIES, UV, Lab, has_npm
from tests.parts.lock.registry import serving
from toolway.parts.lock.tool_process import LockError, run_tool

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not has_npm or UV is None, reason="npm or uv is not installed")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A machine with uv and a locked package of each kind."""
    with serving() as registry:
        made = Lab(tmp_path_factory.mktemp("locked"), registry)
        made.environ["PATH"] = f"{Path(UV or '').parent}:{made.environ['PATH']}"
        made.write(**ENTRIES)
        made.locked("trust", "lock", "--min-age", "0")
        yield made


def plant(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.mark.attack("A2-NB7")
@pytest.mark.parametrize("planted", ["environment", "settings", "project"])
def test_lock_ignores_files_planted_in_the_project(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    project, marker = tmp_path / "project", tmp_path / "marker"
    if planted == "environment":
        plant(project / ".venv/bin/python", f'#!/bin/sh\ntouch {marker}\nexec {sys.executable} "$@"\n')
        plant(project / ".venv/pyvenv.cfg", "home = /usr/bin\n")
    elif planted == "settings":
        plant(project / "uv.toml", "no-index = true\n")
    else:
        plant(project / "pyproject.toml", "[tool.uv]\nno-index = true\n[tool.uv.pip]\nno-index = true\n")
    monkeypatch.chdir(project)
    lock = lab.lock.read_bytes()
    lab.lock.unlink()
    try:
        rows = lab.locked("trust", "lock", "--min-age", "0", "python")["servers"]
        assert [each["state"] for each in rows] == ["locked"] and not marker.exists()
    finally:
        lab.lock.write_bytes(lock)


@pytest.mark.attack("A2-NB7")
def test_lock_does_not_run_a_planted_pip_module(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    plant(tmp_path / "project/pip.py", f"open({str(marker)!r}, 'w')")
    monkeypatch.chdir(tmp_path / "project")
    with suppress(LockError):  # this Python may have no pip
        run_tool([sys.executable, "-m", "pip", "--version"], lab.environ)
    assert not marker.exists()


@pytest.mark.attack("A2-held-B3")
@pytest.mark.parametrize("name", list(ENTRIES))
async def test_locked_server_loads_no_planted_code(lab: Lab, tmp_path: Path, name: str) -> None:
    marker, home = tmp_path / "marker", Path(lab.environ["HOME"])
    python, script = f"open({str(marker)!r}, 'w')", f"require('fs').writeFileSync({str(marker)!r}, '')"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    made = [
        *(
            plant(home / f".local/lib/{version}/site-packages/{each}.py", python)
            for each in ("usercustomize", "acme_helper")
        ),
        *(plant(tmp_path / f"work/{each}.py", python) for each in ("sitecustomize", "acme_helper", "json")),
        plant(home / "node_modules/acme-helper/index.js", script),
        plant(tmp_path / "work/node_modules/acme-helper/index.js", script),
        plant(home / ".pythonrc.py", python),
        *(plant(tmp_path / f"work/{each}", f"#!/bin/sh\ntouch {marker}\n") for each in ("npx", "uvx", "acme-tiny")),
    ]
    before = dict(lab.environ)
    variables = {"PYTHONPATH": f"{tmp_path}/work", "PYTHONSTARTUP": f"{home}/.pythonrc.py"}
    variables |= {
        "NODE_PATH": f"{tmp_path}/work",
        "NODE_OPTIONS": f"--require {home}/node_modules/acme-helper/index.js",
    }
    lab.environ.update(variables, PATH=f"{tmp_path}/work:{before['PATH']}")
    lab.write(**{name: {**ENTRIES[name], "cwd": str(tmp_path / "work")}})
    try:
        assert await lab.call(name) == ["help 1.0.0", "hello"]
        assert not marker.exists()
    finally:
        lab.environ.clear()
        lab.environ.update(before)
        lab.write(**ENTRIES)
        for file in made:
            file.unlink()


@pytest.mark.attack("A2-held-B4")
@pytest.mark.parametrize("kind", ["pth", "sitecustomize", "link", "swapped tree", "other tree"])
def test_changed_locked_tree_is_rejected(lab: Lab, tmp_path: Path, kind: str) -> None:
    command = lab.start("python")
    assert command is not None
    tree = lab.trees / Path(command[0]).relative_to(lab.trees).parts[0]
    modules = next(tree.glob("lib/*/site-packages"))
    lock = lab.lock.read_bytes()
    modules.chmod(0o755)
    tree.chmod(0o755)
    planted = {"pth": "x.pth", "sitecustomize": "sitecustomize.py", "link": "more"}.get(kind, "")
    try:
        if kind == "link":
            (modules / planted).symlink_to(tmp_path)
        elif planted:
            (modules / planted).write_text("import os\n")
        elif kind == "swapped tree":
            tree.rename(tmp_path / "tree")
            tree.symlink_to(tmp_path / "evil")
            (tmp_path / "evil/bin").mkdir(parents=True)
            (tmp_path / "evil/bin/python").symlink_to("/bin/sh")
        else:  # the lock names the tree of another entry for this one
            servers = json.loads(lock)
            npm = next(iter(servers["servers"]["npm"]["trees"].values()))
            trees = servers["servers"]["python"]["trees"]
            servers["servers"]["python"]["trees"] = dict.fromkeys(trees, npm)
            lab.lock.write_text(json.dumps(servers))
        assert lab.refusal("python").startswith("E-LOCK ")
    finally:
        if planted:
            (modules / planted).unlink()
        if kind == "swapped tree":
            tree.unlink()
            os.rename(tmp_path / "tree", tree)
        lab.lock.write_bytes(lock)
    assert lab.start("python") == command

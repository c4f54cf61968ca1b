"""Programs of locked wheels on Windows: plain scripts, which this Python can run, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolway.parts.lock.windows_tree import node_command, note_python, python_command, write_scripts


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree as uv installs it: modules, their metadata, and launchers."""
    modules = tmp_path / "lib" / "python3.13" / "site-packages"
    (modules / "acme").mkdir(parents=True)
    (modules / "acme" / "__init__.py").write_text(
        "class App:\n    def run():\n        import sys; print(sys.argv[1:])\n"
    )
    (modules / "acme-1.dist-info").mkdir()
    (modules / "acme-1.dist-info" / "METADATA").write_text("Name: acme\nVersion: 1\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "acme.exe").write_bytes(b"MZ with the path of an interpreter")
    return tmp_path


def write(tree: Path, *entries: str, group: str = "console_scripts") -> list[str]:
    modules = tree / "lib" / "python3.13" / "site-packages"
    lines = "\n".join((f"[{group}]", *entries))
    (modules / "acme-1.dist-info" / "entry_points.txt").write_text(lines)
    write_scripts(modules, tree)
    return sorted(each.name for each in (tree / "bin").iterdir())


def test_script_replaces_launcher_and_finds_its_modules(tree: Path) -> None:
    assert write(tree, "acme = acme:App.run") == ["acme"]
    note_python(tree, sys.executable, "3.13.2")
    command = python_command(str(tree), "bin/acme", ["a b", "c"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("['a b', 'c']\n", "")


def test_packages_of_the_interpreter_are_hidden(tree: Path) -> None:
    (tree / "lib/python3.13/site-packages/acme/__init__.py").write_text("def run():\n    import pytest\n")
    write(tree, "acme = acme:run")
    note_python(tree, sys.executable, "3.13.2")
    done = subprocess.run(python_command(str(tree), "bin/acme", []), capture_output=True, text=True, timeout=60)
    assert "No module named 'pytest'" in done.stderr


@pytest.mark.parametrize(
    "entry",
    [
        "../../outside = acme:App.run",
        "C:\\\\outside = acme:App.run",
        "acme = acme;import os:App",
        "acme = acme:App.run();import os",
        "acme = acme",
    ],
)
def test_unsafe_entry_point_gets_no_script(tree: Path, entry: str) -> None:
    assert write(tree, entry) == []
    assert not (tree.parent / "outside").exists()


def test_other_entry_point_groups_get_no_scripts(tree: Path) -> None:
    assert write(tree, "acme = acme:App.run", group="pytest11") == []


def test_npm_programs_are_batch_files() -> None:
    assert node_command("/tree", "node_modules/.bin/acme", ["x"]) == ["/tree/node_modules/.bin/acme.cmd", "x"]

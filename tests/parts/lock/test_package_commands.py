"""Command lines of package runners: which package they name, and which of them cannot be locked."""

from __future__ import annotations

import shlex

import pytest

from toolway.parts.lock.lock_file import LockedEntry, read_lock
from toolway.parts.lock.lock_writer import format_lock, write_lock
from toolway.parts.lock.runner_command import NotLockable, is_runner, parse_command


@pytest.mark.parametrize(
    ("line", "packages", "program", "args"),
    [
        ("npx -y foo", ("foo",), "", ()),
        ("npx --yes -q @a/b@1.2.3 x -y", ("@a/b@1.2.3",), "", ("x", "-y")),
        ("npx -y -- foo", ("foo",), "", ()),
        ("npx --package=foo@^1 bar --baz", ("foo@^1",), "bar", ("--baz",)),
        ("/usr/bin/npx foo@latest", ("foo@latest",), "", ()),
        ("npx.cmd foo", ("foo",), "", ()),
        ("uvx foo", ("foo",), "", ()),
        ("uvx foo@1.2 --x", ("foo@1.2",), "", ("--x",)),
        ("uvx --from 'a[b]>=1,<2' c", ("a[b]>=1,<2",), "c", ()),
        ("uvx --with x==1,y foo", ("foo", "x==1", "y"), "", ()),
        ("uv tool run foo", ("foo",), "", ()),
    ],
)
def test_npx_and_uvx_commands_are_parsed(line, packages, program, args) -> None:
    found = parse_command(shlex.split(line))
    assert found is not None
    assert (found.packages, found.program, found.args) == (packages, program, args)


@pytest.mark.parametrize(
    "line",
    [
        "npx",
        "npx --call x",
        "npx -c x",
        "npx github:owner/repository",
        "npx git+https://host/x",
        "npx ./folder",
        "npx https://host/x.tgz",
        "npx -p foo ../evil",
        "npx foo@npm:bar",
        "uvx --index x foo",
        "uvx --from git+https://host/x foo",
        "uvx --from ./folder foo",
        "uvx python3.12",
        "uvx --python /usr/bin/python foo",
        "npm exec foo",
        "bunx foo",
        "pnpm dlx foo",
        "pipx run foo",
    ],
)
def test_unlockable_command_is_still_a_runner(line: str) -> None:
    assert is_runner(shlex.split(line))
    with pytest.raises(NotLockable):
        parse_command(shlex.split(line))


@pytest.mark.parametrize("line", ["node x.js", "python -m foo", "docker run x", "uv run foo", "npm start", "npxx foo"])
def test_other_programs_run_no_packages(line: str) -> None:
    assert parse_command(shlex.split(line)) is None


def test_lock_text_is_deterministic(tmp_path) -> None:
    package = {"version": "1.0.0", "integrity": "sha512-x", "dependencies": {"b": "1", "a": "2"}}
    trees = {"linux-x86_64": "0" * 64, "linux-aarch64": "1" * 64}
    one = LockedEntry("npm", ("a",), "node_modules/.bin/a", contents={"node_modules/a": package}, trees=trees)
    other = LockedEntry(
        *("npm", ("a",), "node_modules/.bin/a"),
        contents={"node_modules/a": dict(reversed(package.items()))},
        trees=dict(reversed(trees.items())),
    )
    assert format_lock({"x": one, "b": other}) == format_lock({"b": other, "x": one})
    assert format_lock({"x": one}) == format_lock({"x": other})
    path = str(tmp_path / "toolway.lock")
    assert write_lock(path, {"x": one}) and not write_lock(path, {"x": other})
    assert read_lock(path) == {"x": one}

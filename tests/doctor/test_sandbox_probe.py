"""The trial of a sandbox for `toolway doctor --security`: what a program in it can read, and what it cannot."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolway.config.locations import own_folders
from toolway.config.schema import SandboxGrants, Server
from toolway.doctor.sandbox_probe import find_private_files, probe_sandbox
from toolway.upstream.process import bubblewrap, landlock
from toolway.upstream.process.spawner import Spawner

pytestmark = pytest.mark.anyio
has_bubblewrap = bubblewrap.find_program() is not None
has_landlock = landlock.abi_version() >= landlock.MIN_ABI


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    for name in (".ssh/id", ".local/state/toolway/gateway/token", ".netrc", "docs/notes"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("secret")
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.fixture
async def spawner(environ: dict[str, str]) -> AsyncIterator[Spawner]:
    made = Spawner(own_folders=own_folders(environ))
    yield made
    await made.close()


async def readable(server: Server, environ: dict[str, str], spawner: Spawner) -> list[str]:
    files = find_private_files(environ)
    found = await probe_sandbox(server, [server.command or ""], files, environ, spawner)
    assert found is not None and not found.problem, found
    assert {"~/.ssh", "~/.netrc", "the variables of other processes"} < {*found.tried}
    return [label.partition(" (")[0] for label in found.readable]


@pytest.mark.skipif(not has_bubblewrap, reason="bubblewrap cannot be used here")
async def test_guard_and_strict_hide_all_private_files(environ, spawner):
    assert await readable(Server(command="/bin/sh", sandbox="guard"), environ, spawner) == []
    assert await readable(Server(command="/bin/sh", sandbox="strict"), environ, spawner) == []


@pytest.mark.skipif(not has_bubblewrap, reason="bubblewrap cannot be used here")
async def test_grant_that_exposes_keys_is_found(environ, spawner):
    server = Server(command="/bin/sh", sandbox="strict", grants=SandboxGrants(read=(environ["HOME"],)))
    assert await readable(server, environ, spawner) == ["~/.ssh", "~/.netrc"]


@pytest.mark.skipif(not has_landlock, reason="this kernel has no Landlock")
async def test_guard_without_bubblewrap_exposes_user_keys(environ, spawner, monkeypatch):
    monkeypatch.setattr(bubblewrap, "find_program", lambda: None)
    found = await readable(Server(command="/bin/sh", sandbox="guard"), environ, spawner)
    assert found[:2] == ["~/.ssh", "~/.netrc"]  # and for root, since Linux 6.15, the variables of other processes
    assert "files of Toolway" not in found


async def test_no_sandbox_exposes_everything(environ, spawner):
    server = Server(command="/bin/sh", sandbox="off")
    found = await readable(server, environ, spawner)
    assert found == ["files of Toolway", "~/.ssh", "~/.netrc", "the variables of other processes"]


async def test_impossible_sandbox_is_a_problem(environ, spawner):
    server = Server(command="npx", sandbox="strict")
    found = await probe_sandbox(server, ["npx", "x"], find_private_files(environ), environ, spawner)
    assert found is not None and "asks a registry" in found.problem


def test_no_toolway_files_means_nothing_to_probe(tmp_path):
    (tmp_path / ".netrc").write_text("secret")
    assert find_private_files({"HOME": str(tmp_path)}) == {}

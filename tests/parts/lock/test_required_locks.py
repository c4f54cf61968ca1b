"""Gateways that require a lock: who decides it, and that `/admin` cannot avoid it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.gateway.edge_lab import edge
from toolway.config.exposure import find_rules
from toolway.config.loader import load_file
from toolway.config.settings import GatewaySettings, parse_gateway
from toolway.doctor.command_lookup import CommandMatch
from toolway.doctor.entry_checks import CheckTarget, check_command
from toolway.doctor.file_checks import plan_own_files
from toolway.doctor.run import run_checks
from toolway.errors import ConfigError, ServerUnavailable
from toolway.parts.lock.guard import lock_of
from toolway.parts.lock.lock_file import LockedEntry
from toolway.parts.lock.lock_writer import write_lock
from toolway.parts.lock.settings import settings_of

ISSUER = {"issuer": "https://login.example", "audience": "https://tools.example/mcp"}


@pytest.mark.parametrize(
    ("block", "required"),
    [
        ({}, False),
        ({"lock": "required"}, True),
        ({"login": ISSUER}, True),
        ({"login": ISSUER, "lock": "optional"}, False),
    ],
)
def test_gateway_with_login_requires_lock_by_default(block, required: bool) -> None:
    assert find_rules(parse_gateway({"gateway": block}, {})).required_guards == ({"lock"} if required else set())


def test_minimum_age_is_three_days_by_default() -> None:
    assert settings_of(GatewaySettings()).min_age == 3 * 86_400
    assert settings_of(parse_gateway({"gateway": {"minAge": "7d"}}, {})).min_age == 7 * 86_400
    assert settings_of(parse_gateway({"gateway": {"minAge": 0}}, {})).min_age == 0
    with pytest.raises(ConfigError):
        parse_gateway({"gateway": {"lock": "maybe"}}, {})


def test_entries_have_the_lock_next_to_their_file(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {
        "a": {"command": "npx", "args": ["x"]},
        "b": {"command": "python3", "args": ["x"]},
        "c": {"command": "uvx", "args": ["x"], "lock": False},
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    loaded = load_file(file)
    assert str(tmp_path / "toolway.lock") in loaded.watched_files
    found = lock_of(loaded.servers["a"])
    assert found is not None and not found.exists
    assert (lock_of(loaded.servers["b"]), lock_of(loaded.servers["c"])) == (None, None)
    write_lock(str(tmp_path / "toolway.lock"), {})
    again = load_file(file).servers["a"]
    found = lock_of(again)
    assert found is not None and found.exists
    assert again != loaded.servers["a"]  # so a reload restarts it


def test_doctor_suggests_a_lock(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "npx", "args": ["x"]}}}))
    server = load_file(file).servers["a"]
    check = check_command(CheckTarget("a", server), server, CommandMatch("/usr/bin/npx"))
    assert (check.state, "toolway trust lock a" in check.message) == ("ok", True)
    entry = LockedEntry("npm", ("x",), "node_modules/.bin/x")
    write_lock(str(tmp_path / "toolway.lock"), {"a": entry})
    locked = load_file(file).servers["a"]
    check = check_command(CheckTarget("a", locked), locked, CommandMatch())  # npx is not needed
    assert (check.state, check.message) == ("ok", "runs the locked tree of x")


@pytest.mark.anyio
async def test_unlocked_package_added_through_admin_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"old": {"command": "npx", "args": ["-y", "x@1.0.0"], "lazy": True}}}))
    write_lock(str(tmp_path / "toolway.lock"), {})
    policy = parse_gateway({"gateway": {"allowedCommands": ["npx"]}}, {}).admission
    async with edge(tmp_path, servers={}, admission=lambda: policy) as gateway:
        await gateway.hub.servers.reload(load_file(file))
        for name in ("old", "new"):
            entry = {"command": "npx", "args": ["-y", "y@1.0.0"]}
            refused = await gateway.ask("PUT", f"/admin/servers/{name}", json.dumps({**entry, "lock": False}).encode())
            assert refused.status == 422
            added = await gateway.ask("PUT", f"/admin/servers/{name}", json.dumps(entry).encode())
            assert added.status == 200
            lock = lock_of(gateway.hub.servers.entries[name])
            assert lock is not None and lock.exists and lock.entry is None
            with pytest.raises(ServerUnavailable, match="is not locked"):
                await gateway.hub.servers.wait_ready(name, timeout=30)


@pytest.mark.anyio
@pytest.mark.parametrize(("setting", "state"), [("required", "fail"), ("optional", "ok")])
async def test_doctor_starts_no_unlocked_package_if_lock_is_required(tmp_path: Path, setting: str, state: str) -> None:
    npx = tmp_path / "npx"
    npx.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m toolway.testing.stdio_main\n')
    npx.chmod(0o755)
    file = tmp_path / "mcp.json"
    entry = {"command": str(npx), "args": ["-y", "x"]}
    file.write_text(json.dumps({"mcpServers": {"a": entry}, "toolway": {"gateway": {"lock": setting}}}))
    environ = {**os.environ, "HOME": str(tmp_path)}
    plan = plan_own_files(environ, tmp_path, file)
    report = await run_checks(plan.targets, environ, files=plan.files, check_machine=False)
    [start] = [check for subject in report.subjects for check in subject.checks if check.name == "start"]
    assert start.state == state, start
    if state == "fail":
        assert (start.code, start.copy) == ("E-LOCK", "toolway trust lock a")
        assert "the gateway requires a lock" in start.message

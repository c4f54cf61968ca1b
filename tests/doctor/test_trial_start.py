"""One start, watched: the times, what came on stdout, and that nothing stays."""

import os
import sys

import pytest

from tests.doctor.doctor_lab import PYTHON, SMALL, Lab
from toolway.config.server_entry import parse_entry
from toolway.doctor import orphans
from toolway.doctor.trial_start import run_trial_start
from toolway.testing import fake_server
from toolway.upstream.process.spawner import Spawner

pytestmark = pytest.mark.anyio


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path / "lab")


@pytest.fixture
async def spawner():
    spawner = Spawner()
    yield spawner
    await spawner.close()


async def seen(value, lab, spawner):
    return await run_trial_start("acme", parse_entry(value, lab.environ), lab.environ, spawner)


async def test_successful_start_has_ordered_times(lab, spawner):
    found = await seen(fake_server(), lab, spawner)
    assert found.failure is None
    assert 0 <= found.spawned_at <= found.first_byte_at <= found.agreed_at <= found.listed_at <= found.ended_at
    assert found.fetched_at is None
    assert len(found.tools) > 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_package_download_time_is_measured_separately(lab, spawner):
    lab.program(lab.bin / "uvx", f"#!/bin/sh\nsleep 1\n{PYTHON} -I -S {SMALL}\n")
    found = await seen({"command": "uvx", "args": ["acme"]}, lab, spawner)
    assert found.failure is None
    assert 0.9 <= found.fetched_at <= found.agreed_at


async def test_non_message_lines_are_kept_and_harmless(lab, spawner):
    noise = "for n in range(10): print(f'line {n}', flush=True)"
    path = lab.script("server", noise)
    found = await seen({"command": str(path)}, lab, spawner)
    assert found.failure is None
    assert found.noise_count == 10
    assert found.noise_lines == ["line 0", "line 1", "line 2", "line 3", "line 4"]


async def test_megabyte_tool_list_is_read(lab, spawner):
    found = await seen(fake_server(tools=900), lab, spawner)
    assert found.failure is None
    assert len(found.tools) > 900
    text = f'[{{"name": "t", "description": "{"x" * 5_000_000}", "inputSchema": {{"type": "object"}}}}]'
    big = lab.write(text, lab.work / "tools.json")
    found = await seen({"command": PYTHON, "args": ["-I", "-S", str(SMALL), str(big)]}, lab, spawner)
    assert found.failure is None
    assert len(found.tools[0]["description"]) == 5_000_000


async def test_server_that_exits_on_probe_is_retried_as_legacy(lab, spawner):
    found = await seen(fake_server("die_on_probe", era="legacy"), lab, spawner)
    assert found.failure is None
    assert found.exits_on_modern


async def test_exit_code_and_stderr_are_captured(lab, spawner):
    found = await seen(fake_server("exit_at_start=7"), lab, spawner)
    assert found.failure.exit_code == 7
    assert "FAKE_TOKEN is not set" in found.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_no_process_is_left_behind(lab):
    spawner = Spawner()
    path = lab.script("server", "import subprocess; subprocess.Popen(['/bin/sleep', '61.7531'])")
    await seen({"command": str(path)}, lab, spawner)
    await spawner.close()
    left = [orphans.command_line(pid) for pid in orphans.descendants(os.getpid())]
    assert "/bin/sleep 61.7531" not in left


async def test_descriptors_are_closed(lab, spawner):
    await seen(fake_server(), lab, spawner)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await seen(fake_server(), lab, spawner)
        await seen(fake_server("exit_at_start"), lab, spawner)
    assert len(os.listdir("/proc/self/fd")) == before

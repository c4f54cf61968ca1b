"""Attacks of a server on memory and processes of the machine: a fork bomb and a memory hog in real sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.test_sandbox import needs_bubblewrap
from toolway.config.schema import SandboxGrants
from toolway.config.server_entry import parse_entry
from toolway.errors import ConfigError
from toolway.upstream.process import bubblewrap, control_group, limits
from toolway.upstream.process.confinement import SandboxError
from toolway.upstream.process.sandbox_choice import confine
from toolway.upstream.process.sandboxes import describe

PROBE = Path(__file__).with_name("limits_probe.py")
ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
MIB = 1 << 20
needs_group = pytest.mark.skipif(
    not control_group.find_parent(), reason="no control group (version 2) is delegated to this process"
)


def attack(kind: str, processes: int, memory: int, *, as_user: bool) -> dict[str, Any]:
    """Run an attack in the sandbox `strict`; as an ordinary user if this is root. Return what it got."""
    options: dict[str, Any] = {}
    python = sys.executable
    if as_user and os.geteuid() == 0:
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        python = find_python()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *(each for each in sys.path if each.endswith("-packages"))])
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, str(PROBE), kind, str(processes), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False, cwd="/", **options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def find_python() -> str:
    """Return a Python of this version that every user may run, and skip the test without one."""
    system = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, system):
        folder = os.path.dirname(os.path.realpath(python))
        parents = [folder, *map(str, Path(folder).parents), str(ROOT)]
        if os.path.exists(python) and all(os.stat(each).st_mode & 0o001 for each in parents):
            return python
    pytest.skip("only root may run this Python, and the limit of processes does not apply to root")


@needs_bubblewrap
@pytest.mark.attack("R3-limit-1")
def test_fork_bomb_stops_at_the_sandbox_limit() -> None:
    found = attack("fork", 40, 1 << 30, as_user=True)
    count, _, reason = found["got"].partition(" ")
    assert 10 <= int(count) < 40 and reason, found
    assert found["by"] in ("namespace", "group")


@needs_bubblewrap
@pytest.mark.attack("R3-limit-2")
def test_memory_hog_stops_at_the_sandbox_limit() -> None:
    found = attack("memory", 40, 256 * MIB, as_user=True)
    assert found["got"] == "" or 64 <= int(found["got"].split()[0]) < 256, found


@needs_group
def test_control_group_limits_all_processes_together() -> None:
    before = set(os.listdir(control_group.find_parent()))
    count = attack("fork", 40, 1 << 30, as_user=False)["got"].split()[0]
    assert 10 <= int(count) < 40
    assert attack("memory-of-two", 40, 1 << 30, as_user=False)["got"] == "192 MiB in two processes"
    killed = attack("memory-of-two", 40, 128 * MIB, as_user=False)
    assert killed["got"] == "" and killed["code"] != 0, killed
    assert set(os.listdir(control_group.find_parent())) == before, "its groups are removed"


# -- which limits apply -----------------------------------------------------------------------------------------------


def plan(
    monkeypatch: pytest.MonkeyPatch, *, user: int = 1000, group: str = "", release: str = "6.8.0", **grants: int
) -> limits.ResourceLimits:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(control_group, "find_parent", lambda: group)
    uname = os.uname_result(("Linux", "host", release, "", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: uname)
    return limits.plan_limits("strict", SandboxGrants(**grants), sys.executable)  # type: ignore[arg-type]


def test_control_group_is_preferred_and_root_has_no_other_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (0, 1000):
        found = plan(monkeypatch, user=user, group="/sys/fs/cgroup/x", max_processes=50)
        assert (found.processes, found.processes_by, found.memory_by) == (50, "group", "group")
        assert found.orders()["group"] == {"parent": "/sys/fs/cgroup/x", "memory": 4 << 30, "processes": 50}
        assert found.wrap(["server"]) == ["server"]
    found = plan(monkeypatch)
    assert (found.processes, found.processes_by, found.memory_by) == (1024, "namespace", "process")
    assert found.wrap(["server", "--x"])[-3:] == ["1024", "server", "--x"] and "group" not in found.orders()
    assert plan(monkeypatch, release="5.10.0").orders()["processes"] == limits.PROCESSES_OF_USER
    as_root = plan(monkeypatch, user=0)
    assert as_root.processes_by == "" and "not limited" in as_root.describe()[0] and "root" in as_root.describe()[0]
    assert "for each of its processes" in as_root.describe()[1]


@pytest.mark.parametrize("case", [{"user": 0}, {"release": "5.10.0-generic"}])
def test_configured_limit_that_cannot_apply_is_rejected(monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="maxProcesses cannot be applied"):
        plan(monkeypatch, **case, max_processes=50)
    monkeypatch.setattr(bubblewrap, "find_program", lambda: sys.executable)
    for refused in (
        lambda: confine(["sh"], dict(os.environ), None, "strict", SandboxGrants(max_processes=50), [], ""),
        lambda: describe("strict", SandboxGrants(max_processes=50)),
    ):
        with pytest.raises(SandboxError) as found:
            refused()
        assert found.value.code == "E-SANDBOX"


def test_limits_are_read_from_an_entry() -> None:
    entry = {"command": "x", "sandbox": {"maxMemoryBytes": 512 * MIB, "maxProcesses": 64}}
    grants = parse_entry(entry).grants
    assert (grants.max_memory_bytes, grants.max_processes) == (512 * MIB, 64)
    for block in ({"maxProcesses": 2}, {"maxMemoryBytes": 1000}, {"maxProcesses": -5}, {"maxProcesses": "many"}):
        with pytest.raises(ConfigError):
            parse_entry({"command": "x", "sandbox": block})


def test_control_group_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a plain folder, which has no kernel behind it: only what is written where."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    (tmp_path / "cgroup.procs").write_text("")
    group = control_group.create(str(tmp_path), 7, 512 * MIB, 64)
    control_group.join(group)
    written = {path.name: path.read_text() for path in Path(group).iterdir()}
    assert written["memory.max"] == str(512 * MIB) and written["pids.max"] == "64" and written["cgroup.procs"] == "0"
    old = tmp_path / "toolway-999999999-1"
    old.mkdir()
    control_group.remove_leftovers(str(tmp_path))
    assert not old.exists() and Path(group).exists()
    assert not control_group.can_create(str(tmp_path / "missing"))

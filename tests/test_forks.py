"""Tests in several copies of one process: `tests/forks.py`, which CI runs all tests with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SHARED = """
import os, pytest, subprocess, sys
made, errors = [], sys.stderr

@pytest.fixture(scope="module")
def process():
    made.append(os.getpid())
    yield os.getpid()
    open("ended-{}".format(os.getpid()), "x").close()

@pytest.mark.parametrize("number", range(130))
def test_one_process_runs_a_file_with_a_shared_fixture(number, process, tmp_path):
    assert made == [os.getpid()] == [process]

def test_a_file_object_of_the_first_process_is_open(capfd):
    subprocess.run(["true"], stderr=errors, check=True)
"""
BROKEN = """
import os, pytest

def test_fails():
    print("printed by the test")
    assert 1 == 2

def test_ends_its_process():
    os._exit(3)

def test_is_run_by_another_process():
    pass

@pytest.mark.skip(reason="no need")
def test_is_skipped():
    pass
"""


def test_forks_share_files_and_report_a_lost_copy(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "test_broken.py").write_text(BROKEN)
    (tmp_path / "test_shared.py").write_text(SHARED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.forks", "--forks", "3", "--few", "few", "-q", "-ra"]
    command += ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    found = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert found.returncode == 1, found.stdout + found.stderr
    assert re.search(r"2 failed, 132 passed, 1 skipped", found.stdout), found.stdout
    assert "printed by the test" in found.stdout and "assert 1 == 2" in found.stdout
    assert "test_ends_its_process" in found.stdout and "ended with exit code 3" in found.stdout
    assert len([*tmp_path.glob("ended-*")]) == 1

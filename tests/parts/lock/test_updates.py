"""The age of packages, and `toolway trust update`: what would change, and what is taken."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.parts.lock.lab import ENTRIES, UV, Lab, has_npm, pip_version
from tests.parts.lock.registry import OLD, serving

pytestmark = pytest.mark.skipif(not has_npm, reason="npm is not installed")
YOUNG = (datetime.now(UTC) - timedelta(days=1)).isoformat()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with serving() as registry:
        found = Lab(tmp_path, registry)
        found.write(npm=ENTRIES["npm"])
        yield found


def version(lab: Lab, package: str = "acme-tiny") -> str:
    entry = json.loads(lab.lock.read_text())["servers"]["npm"]
    found: str = entry["contents"][f"node_modules/{package}"]["version"]
    return found


def test_young_package_or_one_of_unknown_age_is_not_locked(lab: Lab) -> None:
    lab.registry.versions["acme-tiny"] = {"1.0.0": OLD, "1.1.0": YOUNG}
    lab.locked("trust", "lock")
    assert version(lab) == "1.0.0"  # the newest that is old enough
    lab.write(npm={"command": "npx", "args": ["-y", "acme-tiny@1.1.0"]})
    shutil.rmtree(lab.folder / "home/.cache")
    result = lab.toolway("trust", "lock", "--json")
    assert result.exit_code == 1
    assert "1.1.0" in result.stdout
    lab.write(npm={"command": "npx", "args": ["-y", "acme-tiny"]})
    lab.lock.unlink()
    shutil.rmtree(lab.folder / "home/.cache")
    lab.registry.versions["acme-helper"] = {"1.0.0": None}  # of a dependency
    (row,) = json.loads(lab.toolway("trust", "lock", "--json").stdout)["servers"]
    assert (row["state"], row["code"]) == ("failed", "E-LOCK-AGE")
    assert "acme-helper 1.0.0" in row["problem"] and "--min-age 0" in row["problem"]
    assert not lab.lock.exists()


@pytest.mark.slow
def test_update_shows_changes_and_applies_them_if_confirmed(lab: Lab) -> None:
    lab.registry.versions["acme-helper"] = {"1.0.0": None}
    lab.locked("trust", "lock", "--min-age", "0")
    lab.registry.versions = {"acme-tiny": {"1.0.0": OLD, "1.1.0": OLD}, "acme-helper": {"1.0.0": OLD, "1.2.0": OLD}}
    shutil.rmtree(lab.folder / "home/.cache")
    text = lab.lock.read_text()
    lab.locked("trust", "lock")
    assert lab.lock.read_text() == text  # a lock is not an update
    changes = [
        {"package": "acme-helper", "before": "1.0.0", "after": "1.2.0"},
        {"package": "acme-tiny", "before": "1.0.0", "after": "1.1.0"},
    ]
    for words in (("--dry-run",), ()):
        result = lab.toolway("trust", "update", "npm", *words, "--json")
        assert result.exit_code == (0 if words else 2)  # without a terminal it needs --yes
        assert lab.lock.read_text() == text
    (row,) = lab.locked("trust", "update", "npm", "--yes")["servers"]
    assert (row["changes"], row["taken"]) == (changes, True)
    assert (version(lab), version(lab, "acme-helper")) == ("1.1.0", "1.2.0")
    (row,) = lab.locked("trust", "update", "npm", "--yes")["servers"]
    assert (row["changes"], row["taken"]) == ([], False)


@pytest.mark.slow
def test_uv_and_pip_install_the_same_tree(lab: Lab) -> None:
    if UV is None or not pip_version(lab.environ):
        pytest.skip("uv or pip is not installed")
    path = lab.environ["PATH"]
    lab.environ["PATH"] = f"{Path(UV).parent}:{path}"
    lab.write(python={"command": "uvx", "args": ["--python", f"3.{sys.version_info.minor}", "acme-tiny"]})
    lab.registry.versions["acme-tiny"] = {"1.0.0": OLD, "1.1.0": YOUNG}
    (row,) = lab.locked("trust", "lock")["servers"]
    assert (row["version"], row["packages"]) == ("1.0.0", 2)
    assert lab.refusal("python") == ""
    lock = lab.lock.read_text()
    lab.environ["PATH"] = path
    shutil.rmtree(lab.trees)
    (row,) = lab.locked("trust", "lock")["servers"]
    assert (row["state"], lab.lock.read_text(), lab.refusal("python")) == ("installed", lock, "")
    lab.environ["PATH"] = f"{Path(UV).parent}:{path}"
    lab.lock.unlink()
    lab.registry.versions["acme-helper"] = {"1.0.0": None}
    (row,) = json.loads(lab.toolway("trust", "lock", "--json").stdout)["servers"]
    assert row["state"] == "failed" and not lab.lock.exists()


def test_pip_without_time_support_locks_nothing(lab: Lab) -> None:
    lab.environ["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    if shutil.which("uv", path=lab.environ["PATH"]) is not None or pip_version(lab.environ) not in range(1, 26):
        pytest.skip("there is uv, a newer pip or none")
    lab.write(python=ENTRIES["python"])
    (row,) = json.loads(lab.toolway("trust", "lock", "--json").stdout)["servers"]
    assert (row["state"], row["code"]) == ("failed", "E-LOCK-AGE")

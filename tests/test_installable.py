"""`pip install` of our wheel works without a compiler on Windows, macOS, and Linux: every requirement has a wheel.

uv resolves for systems that are not this one. Without uv or a package index, these tests are skipped, and say so."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".uv" / ("Scripts/uv.exe" if sys.platform == "win32" else "bin/uv")
PLATFORMS = {
    "Windows x64": "x86_64-pc-windows-msvc",
    "macOS arm64": "aarch64-apple-darwin",
    "Linux x64": "x86_64-unknown-linux-gnu",
}
EXTRAS = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
NO_INDEX = re.compile(r"Failed to fetch|error sending request|client error \(Connect\)|network was disabled|timed out")
pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not installed: make setup")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("toolway-*.whl")
    return built


def resolve(requirement: str, platform: str, python: str) -> tuple[dict[str, str], str]:
    """Return the resolved versions by name, or why resolving failed. Skips the test without an index."""
    words = [str(UV), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    words += ["--python", sys.executable, "--python-platform", PLATFORMS[platform], "--python-version", python, "-"]
    done = subprocess.run(words, input=requirement, capture_output=True, text=True, timeout=240, cwd=ROOT.anchor)
    if done.returncode != 0 and NO_INDEX.search(done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1].strip()}")
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", done.stdout, re.MULTILINE)), done.stderr


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(("python", "extras"), [("3.11", []), ("3.13", EXTRAS)], ids=["alone", "with all extras"])
def test_every_requirement_has_a_wheel(platform: str, python: str, extras: list[str], wheel: Path) -> None:
    name = f"toolway[{','.join(extras)}]" if extras else "toolway"
    found, problem = resolve(f"{name} @ {wheel.as_uri()}\n", platform, python)
    assert {"mcp", "cryptography", "jsonschema-rs", "jiter", "pyyaml"} <= found.keys(), problem
    assert ("uvloop" in found) == (bool(extras) and platform != "Windows x64")
    assert ("pywin32-ctypes" in found) == (platform == "Windows x64")  # for its Credential Manager
    assert ("secretstorage" in found) == (platform == "Linux x64")


def test_requirement_without_a_wheel_is_found() -> None:
    found, problem = resolve("uvloop\n", "Windows x64", "3.13")  # it has none for Windows
    assert not found and "no usable wheels" in problem

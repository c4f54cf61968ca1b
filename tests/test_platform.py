"""What this system lacks is refused with one code: what failed, the evidence, a fix to copy. Nothing was started.

The systems are emulated by their name, `toolway._os.support.SYSTEM`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from toolway import Hub, ServerUnavailable
from toolway._os import support
from toolway.cli.app import app
from toolway.cli.exit_codes import ExitCode
from toolway.config.locations import is_outside
from toolway.doctor.run import _check_folders
from toolway.doctor.security import judge
from toolway.doctor.security_facts import CheckedServer, Facts
from toolway.upstream.process.confinement import SandboxError
from toolway.upstream.process.sandboxes import describe

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors" / "E-PLATFORM.md"


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "SYSTEM", "windows")


@pytest.fixture
def toolway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command with a file of the given servers; gives the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLWAY_CONFIG", str(tmp_path / "mcp.json"))

    def run(servers: object, *words: str) -> Any:
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        return CliRunner().invoke(app, list(words), catch_exceptions=False)

    return run


def error_of(result: Any) -> dict[str, Any]:
    assert result.exit_code == ExitCode.CONFIG, result.output
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "E-PLATFORM" and error["message"] and error["detail"] and error["hint"]
    return dict(error)


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", get_args(support.Feature))
def test_linux_supports_everything(feature: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "SYSTEM", "linux")
    assert support.missing(feature) is None


@pytest.mark.parametrize("feature", get_args(support.Feature))
def test_missing_windows_feature_is_explained(feature: Any, windows: None) -> None:
    lacked = support.missing(feature)
    assert lacked is not None and all(lacked)
    assert "Windows" in f"{lacked.message} {lacked.detail}" and "{s" not in str(lacked) and "{p" not in str(lacked)


def test_macos_has_a_sandbox_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "SYSTEM", "macos")
    lacked = {feature for feature in get_args(support.Feature) if support.missing(feature)}
    assert lacked == {"sandbox-limits", "workers", "orphans"}


def test_platforms_page_repeats_every_fix(windows: None) -> None:
    page = PAGE.read_text()
    for feature in get_args(support.Feature):
        lacked = support.missing(feature)
        assert lacked is not None and lacked.hint.partition(": ")[2] in page


# -- where it is asked for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["windows", "macos", "other"])
def test_workers_need_linux(system: str, toolway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "SYSTEM", system)
    error = error_of(toolway({"fake": FAKE}, "serve", "--workers", "2", "--json"))
    assert error["message"] == "--workers needs Linux" and error["hint"] == "run one process: toolway serve"


def test_orphan_search_fails_on_windows(toolway: Any, windows: None) -> None:
    assert "tasklist /v" in error_of(toolway({}, "ps", "--orphans", "--json"))["hint"]


def test_sandbox_trial_fails_on_windows(toolway: Any, windows: None) -> None:
    error = error_of(toolway({"fake": FAKE}, "trust", "sandbox", "fake", "--json"))
    assert error["message"] == "Windows has no sandbox for servers"


async def call_in(sandbox: object) -> ServerUnavailable:
    async with Hub({"mcpServers": {"fake": {**FAKE, "sandbox": sandbox}}}) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.call_tool("fake.echo", {"text": "x"})
        return caught.value


@pytest.mark.parametrize("sandbox", ["guard", "strict", {"read": ["/srv"]}])
def test_server_that_requires_a_sandbox_is_not_started(sandbox: object, windows: None) -> None:
    error = asyncio.run(call_in(sandbox))
    assert error.code == "E-PLATFORM" and error.executed == "no"
    assert "was not started: Windows has no sandbox for servers" in error.detail
    assert '"command": "docker"' in error.hint


def test_default_sandbox_of_the_gateway_is_enforced(windows: None) -> None:
    from toolway.upstream.process.spawner import Spawner, SpawnError

    async def start() -> None:
        spawner = Spawner()
        spawner.default_sandbox = "guard"
        try:
            await spawner.start([sys.executable, "-c", "pass"], {}, None, "auto")
        finally:
            await spawner.close()

    with pytest.raises(SpawnError) as caught:
        asyncio.run(start())
    assert caught.value.code == "E-PLATFORM" and caught.value.hint


def test_servers_without_a_sandbox_start(toolway: Any, windows: None) -> None:
    result = toolway({"fake": FAKE, "off": {**FAKE, "sandbox": "off"}}, "ls", "--json")
    assert {server["state"] for server in json.loads(result.stdout)["servers"]} == {"ready"}


def test_doctor_shows_the_reason_and_the_fix(toolway: Any, windows: None) -> None:
    result = toolway({"fake": {**FAKE, "sandbox": "guard"}}, "doctor", "fake", "--json")
    checks = [check for subject in json.loads(result.stdout)["subjects"] for check in subject["checks"]]
    (found,) = (check for check in checks if check["code"] == "E-PLATFORM")
    assert found["name"] == "start" and "Windows has no sandbox" in found["message"]
    assert found["copy"].startswith('"command": "docker"') and found["hint"] == "use a container instead of a sandbox"


def test_isolation_statement_fails_without_sandboxes(windows: None) -> None:
    servers = tuple(CheckedServer(name, sandbox="guard") for name in ("one", "two"))
    (found,) = (each for each in judge(Facts(servers=servers)) if each.id == "isolation")
    assert found.verdict == "does not hold"
    assert {check.code for check in found.checks} == {"E-PLATFORM"}


def test_sandbox_description_is_rejected(windows: None) -> None:
    from toolway.config.schema import SandboxGrants

    with pytest.raises(SandboxError) as caught:
        describe("guard", SandboxGrants())
    assert caught.value.code == "E-PLATFORM"


# -- the state folder of Windows --------------------------------------------------------------------------------------

PROFILE = (r"C:\Users\Ana Müller", r"C:\Users\Ana Müller\AppData\Roaming", r"\\files\profiles$\ana\AppData\Local")


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (r"C:\Users\Ana Müller\AppData\Local\toolway\state", False),
        (r"c:\users\ANA MÜLLER\.toolway", False),
        ("C:/Users/Ana Müller/state", False),
        (r"\\?\C:\Users\Ana Müller\state", False),
        (r"\\files\profiles$\ana\AppData\Local\toolway", False),
        (r"\\?\UNC\files\profiles$\ana\AppData\Local\toolway", False),
        (r"C:\Users\Ana Müller", False),
        (r"C:\Users\Ana Müller2\state", True),
        (r"C:\Users\Ana Müller\..\Public\state", True),
        (r"C:\ProgramData\toolway", True),
        (r"D:\toolway", True),
        (r"D:\Users\Ana Müller\toolway", True),
        (r"\\files\profiles$\ben\toolway", True),
        (r"Users\Ana Müller\state", True),
    ],
)
def test_folder_outside_the_profile_is_detected(folder: str, expected: bool) -> None:
    assert is_outside(folder, PROFILE) is expected


def test_missing_profile_gives_no_finding() -> None:
    assert not is_outside(r"D:\toolway", ())


def test_doctor_warns_about_a_shared_state_folder(windows: None) -> None:
    environ = {"USERPROFILE": PROFILE[0], "APPDATA": PROFILE[1]}
    (found,) = _check_folders([r"D:\toolway", rf"{PROFILE[1]}\toolway", r"D:\toolway"], environ)
    assert (found.state, found.code) == ("warn", "E-DOCTOR-FOLDER")
    assert r"D:\toolway" in found.message and PROFILE[0] in found.detail and found.copy.startswith('icacls "D:')


def test_other_systems_get_no_folder_warning() -> None:
    assert [*_check_folders([r"D:\toolway"], {"USERPROFILE": PROFILE[0]})] == []

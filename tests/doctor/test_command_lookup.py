import os
import time

import pytest

from tests.doctor.doctor_lab import Lab
from tests.timing import within
from toolway.config.schema import Server
from toolway.doctor.command_lookup import common_bin_dirs, find_command, is_old_node, login_shell_path, unpinned_package

pytestmark = pytest.mark.anyio
TRUE = "#!/bin/sh\n"


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path / "lab")


async def test_login_shell_output_before_path_is_ignored(lab):
    lab.environ["SHELL"] = "/bin/sh"
    lab.write('echo "hello PATH=/nowhere"\nPATH="/a b/c:$PATH"; export PATH\n', lab.home / ".profile")
    assert (await login_shell_path(lab.environ)).startswith("/a b/c:")


async def test_hanging_login_shell_times_out(lab, monkeypatch):
    monkeypatch.setattr("toolway.doctor.command_lookup.LOGIN_SHELL_TIMEOUT_S", 0.3)
    lab.environ["SHELL"] = "/bin/sh"
    lab.write("sleep 30\n", lab.home / ".profile")
    began = time.monotonic()
    assert await login_shell_path(lab.environ) == ""
    assert time.monotonic() - began < within(5)


@pytest.mark.parametrize("shell", ["", "/no/such/shell", "/bin/cat"])
async def test_invalid_shell_is_not_started(lab, shell):
    lab.environ["SHELL"] = shell
    assert await login_shell_path(lab.environ) == ""


def test_newest_node_version_comes_first(lab):
    for version in ("v8.0.0", "v22.11.0", "v22.9.0", "v18.20.4"):
        (lab.home / ".nvm" / "versions" / "node" / version / "bin").mkdir(parents=True)
    found = [folder.parent.name for keeper, folder in common_bin_dirs(lab.environ) if keeper == "nvm"]
    assert found == ["v22.11.0", "v22.9.0", "v18.20.4", "v8.0.0"]


async def test_relative_command_is_resolved_in_server_directory(lab):
    lab.program(lab.work / "run.sh", TRUE)
    found = await find_command("./run.sh", "", lab.environ, str(lab.work))
    assert found.path == os.path.join(lab.work, "./run.sh")
    assert (await find_command("./run.sh", "", lab.environ, str(lab.home))).path is None


async def test_own_and_desktop_paths_are_both_shown(lab):
    lab.program(lab.bin / "acme", TRUE)
    found = await find_command("acme", f"{lab.bin}:/usr/bin", lab.environ)
    assert (found.path, found.path_on_desktop) == (str(lab.bin / "acme"), None)
    assert found.searched_folders.startswith(f"searched {lab.bin}, /usr/bin\na desktop application searches ")
    assert str(lab.bin) not in found.searched_folders.splitlines()[1]


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("npx -y @acme/server", "@acme/server"),
        ("npx -y @acme/server@latest", "@acme/server@latest"),
        ("npx -y @acme/server@1.2.3", ""),
        ("npx -y -p acme-tools acme", "acme-tools"),
        ("npx --package=acme@2.0.0 acme", ""),
        ("uvx --python 3.12 acme-mcp", "acme-mcp"),
        ("uvx acme-mcp==1.0", ""),
        ("uvx --from git+https://example.org/x acme", ""),
        ("uvx acme-mcp@1.0.1", ""),
        ("npx ./local", ""),
        ("node server.js", ""),
        ("npx", ""),
    ],
)
def test_unpinned_package_is_detected(words, package):
    command, *args = words.split()
    assert unpinned_package(Server(command=command, args=tuple(args))) == package


@pytest.mark.parametrize(
    ("runtime", "old"), [("node v14.21.3", True), ("node v18.0.0", False), ("uv 0.1.2", False), ("", False)]
)
def test_only_old_node_is_reported(runtime, old):
    assert is_old_node(runtime) is old

"""docs/tutorial/ says what happens. A page begins with a server of ours, in the background and on a port."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.tutorial import commands_of, fits, outputs_of
from toolway.config.approval.held_entries import entry_digest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("page", "shown_port", "commands"), [("openapi", "8701", 18), ("sse", "8801", 10)])
def test_tutorial_shows_real_output(page: str, shown_port: str, commands: int, tmp_path: Path) -> None:
    pairs = commands_of(ROOT / "docs" / "tutorial" / f"{page}.md")
    assert len(pairs) == commands
    environ = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOOLWAY_SECRETS": "file",
        "LANG": "C.UTF-8",
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # The page's next command comes when a user has read a line or two.
    patience = f"for n in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && break; sleep 0.1; done"
    digests = {digest_in(command): digest_in(command.replace(shown_port, port)) for command, _ in pairs}
    moved = [command.replace(shown_port, port) for command, _ in pairs]
    first, *rest = [re.sub(r"(?<=--digest )\w+", lambda found: digests[found[0]], command) for command in moved]
    said = outputs_of([f"{first[:-1]} >/dev/null &", patience, *rest], ROOT, environ)
    del said[1]
    assert len(said) == len(pairs), said
    for (command, shown), output in zip(pairs, said, strict=True):
        expected = [line.replace(shown_port, port) for line in shown if without_jobs(line) == line]
        assert fits(without_jobs(output), expected), f"$ {command}\n{output}"


def digest_in(command: str) -> str:
    """Return the digest of the first entry in a config file that a command writes; empty if it writes none."""
    written = re.search(r"mcp\.json <<'END'\n(.*)\nEND", command, re.DOTALL)
    entries = json.loads(written[1])["mcpServers"] if written is not None else {}
    return next((entry_digest(entry, {}) for entry in entries.values()), "")


def test_cluster_tutorial_shows_real_output(tmp_path: Path) -> None:
    if shutil.which("nats-server", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("nats-server is not installed")
    pairs = commands_of(ROOT / "docs" / "tutorial" / "cluster.md")
    assert len(pairs) == 19
    ports = dict(zip(("4222", "8811", "8812"), free_ports(3), strict=True))

    def moved(text: str) -> str:
        return re.sub("|".join(ports), lambda found: ports[found[0]], text)

    environ = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOOLWAY_SECRETS": "file",
        "LANG": "C.UTF-8",
    }
    # The page's next command comes when a user has read a line or two, and then both are ready.
    asked = "python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1])' http://127.0.0.1:{}/readyz"
    ready = [
        f"for n in $(seq 100); do {asked.format(ports[each])} 2>/dev/null && break; sleep 0.1; done"
        for each in ("8811", "8812")
    ]
    # A server changes its node when another one joins, which takes its time on a busy machine.
    known = "TOOLWAY_STATE=$PWD/{} toolway tools demo.echo --json -q >/dev/null 2>&1"
    ready += [f"for n in $(seq 30); do {known.format(each)} && break; sleep 0.5; done" for each in ("one", "two")]
    at = next(index for index, (command, _) in enumerate(pairs) if "8812 --node" in command) + 1
    commands = [moved(command) for command, _ in pairs]
    said = outputs_of([*commands[:at], *ready, *commands[at:]], tmp_path, environ, seconds=280)
    del said[at : at + len(ready)]
    assert len(said) == len(pairs), said
    for (command, shown), output in zip(pairs, said, strict=True):
        assert fits(plain(output), [plain(moved(line)) for line in shown]), f"$ {command}\n{output}"


def without_jobs(text: str) -> str:
    """A shell says that a job ended when it likes."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(r"\[\d+\]", line))


def plain(text: str) -> str:
    """Columns are as wide as what stands in them, which is different each time."""
    return re.sub(r" +", " ", without_jobs(text))


def free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(server.getsockname()[1]) for server in servers]


def test_laptop_and_gateway_tutorials_show_real_output(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOOLWAY_SECRETS": "file",
        "LANG": "C.UTF-8",
    }
    (port,) = free_ports(1)
    for page, count in (("laptop", 9), ("gateway", 11)):
        pairs = commands_of(ROOT / "docs" / "tutorial" / f"{page}.md")
        assert len(pairs) == count
        commands = [command.replace("8765", port) for command, _ in pairs]
        said = outputs_of(commands, tmp_path, {**environ, "XDG_STATE_HOME": str(tmp_path / page)})
        assert len(said) == len(pairs), said
        for (command, shown), output in zip(pairs, said, strict=True):
            expected = [plain(line.replace("8765", port)) for line in shown]
            assert fits(plain(output), expected), f"$ {command}\n{output}"


def test_library_tutorial_shows_its_programs_and_output() -> None:
    page = (ROOT / "docs" / "tutorial" / "library.md").read_text()
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    programs = sorted((ROOT / "examples" / "tutorial").glob("*.py"))
    assert {source for source, _ in shown} == {program.read_text() for program in programs}
    for source, printed in shown:
        ran = subprocess.run(
            [sys.executable, "-c", source], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
        )
        assert fits(ran.stdout, printed.splitlines()), ran.stdout + ran.stderr

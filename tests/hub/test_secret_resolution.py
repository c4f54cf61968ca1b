"""Secrets reach the one server that names them, when it starts, and no one else. Real processes, real sockets."""

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.timing import within
from toolway import Hub, ServerUnavailable
from toolway.config.masking import build_masker
from toolway.events import Connected
from toolway.secrets import open_store
from toolway.testing import FakeHttp

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"], "maxRestarts": 0, "maxRetries": 0}
pytestmark = pytest.mark.anyio


def store(name, value):
    open_store(os.environ).set(name, value)


def fake(**env):
    return {**FAKE, "env": env}


def environment_of(hub, server):
    text = Path(f"/proc/{hub.status()[server].pid}/environ").read_text()
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_each_server_gets_only_its_own_secrets(tmp_path):
    for name in ("a", "b", "unused"):
        store(name, f"canary-of-{name}")
    (tmp_path / "file").write_text("canary-of-file\n")
    entries = {
        "one": fake(TOKEN="${keyring:a}"),
        "two": fake(TOKEN="x ${keyring:b} y", FILE=f"${{file:{tmp_path}/file}}"),
        "three": fake(MADE="${command:printf canary-of-command}"),
        "four": fake(),
    }
    async with Hub(entries) as hub:
        await hub.wait_ready(timeout=60)
        found = {name: environment_of(hub, name) for name in entries}
    canaries = {
        name: {key: value for key, value in environ.items() if "canary" in value} for name, environ in found.items()
    }
    assert canaries == {
        "one": {"TOKEN": "canary-of-a"},
        "two": {"TOKEN": "x canary-of-b y", "FILE": "canary-of-file"},
        "three": {"MADE": "canary-of-command"},
        "four": {},
    }


@contextlib.asynccontextmanager
async def overheard(port):
    """A proxy to a server that records all bytes sent: (the port, the bytes)."""
    heard = bytearray()

    async def pump(reader, writer, ears=None):
        while data := await reader.read(65536):
            if ears is not None:
                ears += data
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accept(reader, writer):
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pump(reader, back, heard), pump(there, writer))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], heard
    finally:
        listener.close()


async def test_restart_resolves_secrets_again_for_its_server():
    store("a", "canary-of-a")
    store("b", "canary-of-b")
    async with (
        FakeHttp() as one,
        FakeHttp() as two,
        overheard(one.port) as (port_one, heard_one),
        overheard(two.port) as (port_two, heard_two),
    ):
        entries = {
            "one": {"url": f"http://127.0.0.1:{port_one}/mcp", "headers": {"Authorization": "Bearer ${keyring:a}"}},
            "two": {"url": f"http://127.0.0.1:{port_two}/mcp?key=${{keyring:b}}"},
        }
        async with Hub(entries) as hub:
            await hub.wait_ready(timeout=60)
            for _ in range(3):
                await asyncio.gather(*(hub.call_tool(f"{name}.add", {"a": 1, "b": 2}) for name in ("two", "one")))
            store("a", "canary-of-later")
            connected = hub.events(Connected)
            hub.restart_server("one")
            await asyncio.wait_for(anext(connected), 60)
            await hub.call_tool("one.add", {"a": 1, "b": 2})
    canaries = [sorted(set(re.findall(rb"canary-of-\w+", heard))) for heard in (heard_one, heard_two)]
    assert canaries == [[b"canary-of-a", b"canary-of-later"], [b"canary-of-b"]]


@pytest.mark.parametrize(
    ("reference", "evidence"),
    [
        ("${keyring:nothing}", "unknown secret name"),
        ("${file:/nowhere/at/all}", "No such file"),
        ("${file:/dev/zero}", "not a regular file"),
        ("${command:no-such-program-at-all}", "cannot be started: ENOENT"),
        ("${command:false}", "exit code 1"),
        ("${command:true}", "the secret is empty"),
        ("${command:head -c 70000 /dev/zero}", "longer than"),
        ("${command:yes canary-in-output}", "longer than"),
        ("${command:printf '\\377'}", "not UTF-8"),
        ("${command:sh -c 'printf can\\141ry >&2; exit 3'}", "exit code 3"),
    ],
)
async def test_missing_secret_is_explained_and_nothing_starts(reference, evidence):
    async with Hub({"gh": fake(TOKEN=reference)}) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.wait_ready("gh", timeout=60)
        status = hub.status()["gh"]
    assert evidence in str(caught.value)
    assert caught.value.code == "E-SECRETS-MISSING"
    assert status.pid is None
    shown = f"{caught.value} {caught.value.__notes__ if hasattr(caught.value, '__notes__') else ''} {status}"
    assert "canary" not in shown.replace(reference, "")


async def test_hanging_secret_command_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr("toolway.hub.secret_resolution.COMMAND_TIMEOUT_S", 0.3)
    mark = tmp_path / "alive"
    began = time.monotonic()
    async with Hub({"gh": fake(TOKEN=f"${{command:sh -c 'echo $$ > {mark}; sleep 300 & sleep 300'}}")}) as hub:
        with pytest.raises(ServerUnavailable, match="did not end within"):
            await hub.wait_ready("gh", timeout=60)
    assert time.monotonic() - began < within(20)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


async def test_secret_command_gets_no_input_and_no_shell():
    async with Hub({"gh": fake(TOKEN="${command:cat}"), "sh": fake(TOKEN="${command:printf %s $HOME;x}")}) as hub:
        with pytest.raises(ServerUnavailable, match="the secret is empty"):
            await hub.wait_ready("gh", timeout=60)
        await hub.wait_ready("sh", timeout=60)
        assert environment_of(hub, "sh")["TOKEN"] == "$HOME;x"


async def test_secret_in_server_output_is_masked():
    store("a", "canary-of-a")
    leaky = "import os, sys; print('my token is', os.environ['TOKEN'], file=sys.stderr); sys.exit(3)"
    entry = {"command": sys.executable, "args": ["-c", leaky], "env": {"TOKEN": "${keyring:a}"}, "maxRestarts": 0}
    async with Hub({"gh": entry}) as hub:
        with contextlib.suppress(ServerUnavailable):
            await hub.wait_ready("gh", timeout=60)
        told = json.dumps(hub.status()["gh"].stderr)
    assert "my token is" in told
    assert "canary" not in build_masker(hub._core.servers.entries.values())(told)


async def test_secrets_of_servers_not_started_are_not_resolved(tmp_path):
    mark = tmp_path / "ran"
    reference = f"${{command:touch {mark}}}"
    entries = {
        "off": {**fake(T=reference), "enabled": False},
        "lazy": {**fake(T=reference), "lazy": True},
        "on": fake(),
    }
    async with Hub(entries) as hub:
        await hub.wait_ready("on", timeout=60)
    assert not mark.exists()


async def test_hub_does_not_keep_resolved_secrets():
    store("a", "canary-of-a")
    async with Hub({"gh": fake(TOKEN="${keyring:a}")}) as hub:
        await hub.wait_ready("gh", timeout=60)
        assert hub._core.servers.entries["gh"].env["TOKEN"] == "${keyring:a}"


# -- variables that are not set, and env files ------------------------------------------------------------------------


@pytest.mark.promise("C14")
async def test_unset_variable_blocks_start_until_set(monkeypatch, tmp_path):
    monkeypatch.delenv("LATE_TOKEN", raising=False)
    started = tmp_path / "started"
    command = {"command": sys.executable, "args": ["-c", f"open({str(started)!r}, 'w')", "${LATE_TOKEN}"]}
    async with Hub({"args": command, "env": fake(TOKEN="x ${LATE_TOKEN}")}, catalog_storage=None) as hub:
        assert {issue.code for issue in hub.config_issues} == {"E-CONFIG-VARIABLE"}
        for name, key in (("args", "args"), ("env", "env.TOKEN")):
            with pytest.raises(ServerUnavailable) as caught:
                await hub.call_tool(f"{name}.echo", {"text": "x"})
            assert caught.value.code == "E-CONFIG-VARIABLE" and caught.value.executed == "no"
            assert (
                "LATE_TOKEN is not set" in caught.value.detail and f"{key} uses ${{LATE_TOKEN}}" in caught.value.detail
            )
            assert "export LATE_TOKEN=" in caught.value.hint
            assert hub.status()[name].lifecycle == "failed"
        assert not started.exists()
        monkeypatch.setenv("LATE_TOKEN", "is-set-now")
        hub.restart_server("env")
        await hub.wait_ready("env", timeout=60)
        assert environment_of(hub, "env")["TOKEN"] == "x is-set-now"


async def test_unset_variable_in_url_or_header_blocks_start(monkeypatch):
    monkeypatch.delenv("LATE_TOKEN", raising=False)
    async with FakeHttp() as server:
        entries = {
            "header": {"url": server.url, "headers": {"Authorization": "Bearer ${LATE_TOKEN}"}},
            "url": {"url": "${LATE_URL}"},
        }
        async with Hub(entries, catalog_storage=None) as hub:
            for name in entries:
                with pytest.raises(ServerUnavailable) as caught:
                    await hub.call_tool(f"{name}.echo", {"text": "x"})
                assert caught.value.code == "E-CONFIG-VARIABLE"
            monkeypatch.setenv("LATE_TOKEN", "t")
            monkeypatch.setenv("LATE_URL", server.url)
            for name in entries:
                hub.restart_server(name)
                await hub.wait_ready(name, timeout=60)
                assert (await hub.call_tool(f"{name}.echo", {"text": "x"})).text


@pytest.mark.promise("C14")
async def test_env_file_is_passed_to_server_and_env_overrides_it(tmp_path):
    file = tmp_path / "server.env"
    entry = {**FAKE, "envFile": str(file), "env": {"BOTH": "entry", "COPY": "${FROM_FILE}"}}
    async with Hub({"s": entry}, catalog_storage=None) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.call_tool("s.echo", {"text": "x"})
        assert caught.value.code == "E-CONFIG-ENV-FILE" and str(file) in caught.value.detail
        file.write_text("BOTH=file\nFROM_FILE='a b'\nSMTP_PASSWORD=canary-of-the-file\n")
        hub.restart_server("s")
        await hub.wait_ready("s", timeout=60)
        found = environment_of(hub, "s")
        assert {key: found[key] for key in ("BOTH", "FROM_FILE", "COPY")} == {
            "BOTH": "entry",
            "FROM_FILE": "a b",
            "COPY": "a b",
        }
        assert found["SMTP_PASSWORD"] == "canary-of-the-file"
    assert "canary-of-the-file" not in build_masker([])("it is canary-of-the-file")

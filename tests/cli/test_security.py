"""`toolway doctor --security` on whole machines: one where all five guarantees hold, and a laptop as installed."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.parts.identity.issuer import Issuer
from toolway.cli.exit_codes import GatewayDenied
from toolway.doctor.security import judge
from toolway.gateway.state_dir import StateDir
from toolway.serve.security_check import collect_remote

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
IDS = ["identity", "content", "definitions", "isolation", "signed"]


@contextmanager
def provider() -> Iterator[str]:
    """An OpenID provider at an address of this machine."""
    issuer = Issuer()

    class Documents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = issuer.metadata if "well-known" in self.path else {"keys": issuer.keys}
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Documents)
    url = f"http://127.0.0.1:{server.server_port}"
    issuer.metadata = {"issuer": url, "jwks_uri": f"{url}/keys"}
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def company_file(url: str, **gateway: object) -> dict[str, Any]:
    login = {"issuer": url, "audience": "https://tools.example/mcp"}
    settings = {"login": login, "pins": "hold", "sandbox": "guard", **gateway}
    block = {"gateway": settings, "access": {"eng": ["fake.*"]}, "audit": True}
    return {"mcpServers": {"fake": FAKE}, "toolway": block}


def state(machine) -> Path:
    return Path(machine.home, ".local/state/toolway/gateway")


@contextmanager
def gateway(machine, *options: str, pinned: bool = True) -> Iterator[str]:
    """A gateway of this machine that has listed the tools of its server (`pinned`), and is stopped at the end."""
    words = [sys.executable, "-m", "toolway.cli", "serve", "--port", "0", "--json", "--drain-delay", "0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, text
            text += line
        until = time.monotonic() + 60
        pins = state(machine) / "pins.json"
        while pinned and time.monotonic() < until and not (pins.exists() and '"tools"' in pins.read_text()):
            time.sleep(0.05)
        yield json.loads(text)["url"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def company(machine, *options: str):
    result = machine.toolway("doctor", "--security", "--json", *options)
    document = json.loads(result.stdout)
    assert [each["id"] for each in document["statements"]] == IDS
    return result.exit_code, {each["id"]: each for each in document["statements"]}, document


def evidence(statement, name: str) -> list[str]:
    return [
        f"{each['state']} {each['message']} {each['detail']}" for each in statement["evidence"] if each["name"] == name
    ]


def test_all_statements_hold_for_a_secured_gateway(machine):
    machine.write(".ssh/id_ed25519", "a private key")
    with provider() as url:
        machine.write(".config/toolway/mcp.json", company_file(url))
        assert machine.toolway("trust").exit_code == 0  # the first command records the entries
        with gateway(machine, "--host", "0.0.0.0") as address:
            _, running, _ = company(machine)
            assert running["identity"]["verdict"] == "holds", "its token is accepted from this machine only"
            address = address.removesuffix("/mcp").replace("0.0.0.0", "127.0.0.1")
            assert f"tried at {address}" in evidence(running["identity"], "anonymous")[0]
            assert "with headers of a proxy, as was tried" in evidence(running["identity"], "token")[0]
        code, found, document = company(machine)
        assert {name: each["verdict"] for name, each in found.items()} == dict.fromkeys(IDS, "holds"), found
        assert (code, document["holds"]) == (0, True)
        assert "~/.ssh" in evidence(found["isolation"], "fake")[0]
        assert "definitions are pinned" in evidence(found["definitions"], "fake")[0]
        assert evidence(found["signed"], "log")[0].startswith("ok the newest checkpoint is valid")

        # the end of the log is removed, a grant shows a key, and the entry is another one
        with_grant = company_file(url)
        with_grant["mcpServers"]["fake"] |= {"sandbox": {"read": [str(machine.home)]}}
        machine.write(".config/toolway/mcp.json", with_grant)
        with closing(sqlite3.connect(state(machine) / "audit.sqlite")) as log, log:
            log.execute("DELETE FROM records WHERE seq > 1")
        code, found, _ = company(machine)
        assert code == 9
        assert "its end was removed" in evidence(found["signed"], "log")[0]
        assert "not trusted this entry yet" in evidence(found["content"], "fake")[0]
        [waiting] = json.loads(machine.toolway("trust", "fake", "--json").stdout)["entries"]
        assert machine.toolway("trust", "fake", "--digest", waiting["digest"]).exit_code == 0
        _, found, _ = company(machine)
        assert "can read ~/.ssh" in evidence(found["isolation"], "fake")[0]


def test_default_laptop_gets_findings_with_fixes(machine):
    secret = {**FAKE, "env": {"GITHUB_TOKEN": TOKEN}}
    npx = {"command": "npx", "args": ["-y", "some-server", "--api-key", TOKEN]}
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"fake": secret, "npx": npx}})
    machine.toolway("trust")
    StateDir(state(machine)).open_key_store().create_key_sync("old laptop", None, False, time.time())
    before = sorted(path for path in machine.home.rglob("*") if path.is_file())
    code, found, document = company(machine)
    assert sorted(path for path in machine.home.rglob("*") if path.is_file()) == before  # nothing was created
    assert (code, document["holds"]) == (9, False)
    assert {name: each["verdict"] for name, each in found.items()} == dict.fromkeys(IDS, "does not hold")
    fixes = [each["copy"] for statement in found.values() for each in statement["evidence"] if each["state"] == "fail"]
    assert all(fixes)
    for fix in ("toolway trust lock npx", '"sandbox": "guard"', "toolway secrets set fake.GITHUB_TOKEN"):
        assert fix in fixes
    assert "'old laptop'" in "".join(evidence(found["identity"], "keys"))
    assert "args" in "".join(evidence(found["isolation"], "npx"))
    text = machine.toolway("doctor", "--security")
    assert text.exit_code == 9
    assert "✗ What was done is signed: does not hold" in text.output
    assert TOKEN not in text.output and TOKEN not in json.dumps(document)


def test_untrusted_entry_does_not_count_against_content(machine):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"fake": FAKE}})
    machine.toolway("trust")
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"fake": FAKE, "planted": {"command": "/bin/evil"}}})
    _, found, _ = company(machine)
    assert evidence(found["content"], "planted") == ["ok not started: you have not trusted this entry yet "]
    assert found["content"]["verdict"] == "holds"
    assert not evidence(found["isolation"], "planted")


class RemoteGateway:
    """A gateway on another machine, as it answers: with a login, or one that was started with --no-auth."""

    url = "https://tools.example"

    def __init__(self, status: int) -> None:
        self._status = status
        self.headers: dict[str, str] = {}

    async def request_admin(self, method: str, path: str, body: object = None) -> Any:
        raise GatewayDenied("the gateway rejects the token")

    async def fetch(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        metadata = {"authorization_servers": ["https://login.example"]}
        return (200, json.dumps(metadata).encode()) if "well-known" in path else (self._status, b"")


@pytest.mark.anyio
async def test_remote_gateway_can_only_refute_identity():
    open_one = judge(await collect_remote(RemoteGateway(200)))
    assert [each.verdict for each in open_one] == ["does not hold"] + 4 * ["cannot be determined"]
    facts = await collect_remote(RemoteGateway(401))
    found = judge(facts)
    assert [each.verdict for each in found] == 5 * ["cannot be determined"]
    messages = " ".join(f"{check.message} {check.detail}" for check in found[0].checks)
    assert "the gateway rejects the token" in messages and "https://login.example" in messages
    assert "run toolway doctor --security there" in found[3].checks[0].message
    assert facts.not_checked and "https://tools.example" in facts.checked[0]


def test_running_gateway_without_auth_is_found(machine):
    file = machine.write("srv/mcp.json", {"mcpServers": {"fake": {**FAKE, "sandbox": "guard", "lazy": True}}})
    _, found, _ = company(machine, "--config", str(file))
    [fix] = [each["copy"] for each in found["content"]["evidence"] if each["state"] == "fail"]
    assert fix == f"toolway serve --config {file}"
    with gateway(machine, "--no-auth", "--config", str(file), pinned=False) as address:
        code, found, document = company(machine)
        assert code == 9 and str(file) in document["checked"][0]
        [text] = evidence(found["identity"], "anonymous")
        assert text.startswith("fail a request without a valid token was accepted")
        assert address.removesuffix("/mcp") in text and "GET /admin/servers with no token got status 200" in text
        assert found["content"]["verdict"] == "holds"  # the start has recorded the entries


@pytest.mark.parametrize("option", [["--tools"], ["--fix"], ["--all"], ["fake"], ["--client", "cursor"]])
def test_security_check_cannot_be_combined_with_others(machine, option):
    assert machine.toolway("doctor", "--security", *option).exit_code == 2

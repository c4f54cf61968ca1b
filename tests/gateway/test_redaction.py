"""Secrets of a server never leave in its results, and what the operator names is removed."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import TOKEN, Edge
from toolway.config.server_entry import parse_entry
from toolway.errors import ConfigError
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.hub.result_redaction import REDACTION_CODE, ResultRedactor
from toolway.secrets.server_secrets import ServerSecrets, secrets_of
from toolway.types import ToolResult

SECRET = 'correct-horse-"battery"-stäple'
SERVER = """
import json, os, sys

def escaped(text):
    return "".join("\\\\u%04x" % ord(each) for each in text)

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    raw = None
    if method == "initialize":
        info = {"name": "leaky", "version": "1"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        tool = {"name": "leak", "inputSchema": {"type": "object"}}
        result = {"tools": [tool]}
    elif method == "tools/call":
        secret, how = os.environ["API_TOKEN"], params["arguments"]["how"]
        text = {"plain": "it is " + secret, "nested": json.dumps({"token": secret}), "long": "x" * 400000 + secret}
        if how == "structured":
            content = [{"type": "text", "text": "no"}]
            result = {"content": content, "structuredContent": {"a": [{secret: secret}], "mode": os.environ["MODE"]}}
        elif how == "escaped":
            raw = '{"content":[{"type":"text","text":"%s"}]}' % escaped(secret)
        else:
            result = {"content": [{"type": "text", "text": text.get(how, how)}]}
    else:
        result = {}
    body = raw if raw is not None else json.dumps(result, ensure_ascii=False)
    sys.stdout.write('{"jsonrpc":"2.0","id":%s,"result":%s}\\n' % (json.dumps(message["id"]), body))
    sys.stdout.flush()
"""


@asynccontextmanager
async def _gateway(folder: Path, **settings: Any) -> AsyncIterator[Edge]:
    program = folder / "leaky.py"
    program.write_text(SERVER)
    env = {"API_TOKEN": SECRET, "MODE": "ordinary words"}
    entry = {"command": sys.executable, "args": [str(program)], "env": env, "tools": {"leak": {"effect": "unsafe"}}}
    keyring = FileApiKeyStore(folder / "keys.json", TOKEN)
    async with HubCore({"leaky": parse_entry({**entry, **settings})}, callbacks=NoHubCallbacks()) as hub:
        gateway = Gateway(hub, b"k" * 32, keyring)
        port = await gateway.listen("127.0.0.1", 0)
        await hub.servers.wait_ready(timeout=60)
        await hub.lists.waits.wait_known(["leaky"], "tools", 60)
        try:
            yield Edge(hub, gateway, keyring, port, {})
        finally:
            gateway.http_server.stop_accepting()
            await gateway.subscriptions.close()


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["plain", "nested", "structured", "escaped", "long"])
async def test_server_secret_is_masked_in_its_result(tmp_path: Path, how: str) -> None:
    async with _gateway(tmp_path) as found:
        answer = await found.call("leaky__leak", {"how": how})
        assert SECRET not in json.dumps(answer, ensure_ascii=False) and "battery" not in json.dumps(answer)
        assert "***" in json.dumps(answer["result"])
        if how == "structured":
            assert answer["result"]["structuredContent"]["mode"] == "ordinary words"
        again = await found.call("leaky__leak", {"how": "harmless"})
        assert again["result"]["content"][0]["text"] == "harmless"


@pytest.mark.anyio
async def test_result_without_a_secret_stays_a_flight(tmp_path: Path) -> None:
    async with _gateway(tmp_path) as found:
        await found.call("leaky__leak", {"how": "harmless"})
        before = found.hub.calls.flights.landed
        for _ in range(3):
            await found.call("leaky__leak", {"how": "harmless"})
        assert found.hub.calls.flights.landed == before + 3


@pytest.mark.anyio
async def test_result_that_cannot_be_searched_is_withheld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RecursionError

    async with _gateway(tmp_path) as found:
        monkeypatch.setattr(ResultRedactor, "_redact_value", fail)
        error = (await found.call("leaky__leak", {"how": "plain"}))["error"]
        assert (error["code"], error["data"]["executed"], error["data"]["code"]) == (-31012, "yes", REDACTION_CODE)
        assert "battery" not in json.dumps(error)


@pytest.mark.anyio
async def test_configured_kinds_of_data_are_masked(tmp_path: Path) -> None:
    text = "Ann <ann.lee@mail.example.org> 4111 1111 1111 1111 DE89 3704 0044 0532 0130 00 078-05-1120 ghp_" + 36 * "a"
    async with _gateway(tmp_path, redact=["email", "card", "iban", "ssn", "secrets"]) as found:
        shown = (await found.call("leaky__leak", {"how": text}))["result"]["content"][0]["text"]
        assert shown == "Ann <***> *** *** *** ***"
        kept = "call 4111 1111 1111 1112, order 2026-11-17, DE88 3704 0044 0532 0130 00, a@b, 000-12-3456"
        assert (await found.call("leaky__leak", {"how": kept}))["result"]["content"][0]["text"] == kept


@pytest.mark.anyio
async def test_large_result_is_searched_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    async def to_thread(work: Any, *arguments: Any) -> Any:
        used.append(work)
        return work(*arguments)

    monkeypatch.setattr("toolway.hub.result_redaction.asyncio.to_thread", to_thread)
    redactor = ResultRedactor("a-server-of-its-own")
    redactor.secrets.add("0123456789abcdef")
    for size, expected in ((1000, 0), (300_000, 1)):
        raw = {"content": [{"type": "text", "text": "0123456789abcdef" + "x" * size}]}
        result = ToolResult("s", "t", raw, raw_bytes=memoryview(json.dumps(raw).encode()))
        redacted = await redactor.redact(result)
        assert redacted.raw["content"][0]["text"].startswith("***x") and redacted.raw_bytes is None
        assert len(used) == expected


def test_images_and_blobs_are_not_inspected() -> None:
    redactor = ResultRedactor("another-server", ["ssn"])
    image = {"type": "image", "data": "078-05-1120", "mimeType": "image/png"}
    result = ToolResult("s", "t", {"content": [image, {"type": "text", "text": "078-05-1120"}]})
    assert redactor.redact_now(result).raw["content"] == [image, {"type": "text", "text": "***"}]


def test_secrets_are_kept_per_server_and_bounded() -> None:
    found = ServerSecrets()
    for number in range(1000):
        found.add(f"secret-{number:04}")
    found.add("short")
    assert len(found.texts) == 256 and not found.may_be_in(b"secret-0000") and found.may_be_in(b"secret-0999")
    assert secrets_of("one-server") is not secrets_of("other-server")


def test_invalid_redact_or_label_is_rejected() -> None:
    with pytest.raises(ConfigError, match="redact"):
        parse_entry({"command": "x", "redact": ["mail"]})
    with pytest.raises(ConfigError, match="labels"):
        parse_entry({"command": "x", "tools": {"t": {"labels": ["secret"]}}})


@pytest.mark.parametrize("text", ["${HOME}", "{{ env.HOME }}", "$(id)", "{x.__class__}", "env.HOME", "\\1"])
@pytest.mark.advisory("26")
def test_redactor_evaluates_nothing(text: str) -> None:
    """A redactor only replaces text: what a result contains is never an expression, and neither is a setting."""
    redactor = ResultRedactor("row-26", ("secrets", "email", "card", "iban", "ssn"))
    result = ToolResult("row-26", "read", {"content": [{"type": "text", "text": text}], "structuredContent": {text: 1}})
    assert redactor.redact_now(result) is result
    with pytest.raises(ConfigError):
        parse_entry({"command": "x", "redact": [text]})

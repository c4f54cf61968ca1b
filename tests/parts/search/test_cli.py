"""`toolway search --missed`: what models searched for, if they called none of the found tools."""

from __future__ import annotations

import json
import time

import pytest

from toolway.cli.exit_codes import GatewayError
from toolway.cli.options import CommandContext, TargetOptions
from toolway.cli.output import Output
from toolway.parts.search import cli
from toolway.parts.search.cli import run_missed
from toolway.types import Json

pytestmark = pytest.mark.anyio
FOUND = ["mail__send", "mail__read", "mail__list", "mail__drop"]
SEARCHES: Json = {
    "fits": 7,
    "nothing": 2,
    "rejected": 0,
    "calls": {},
    "unmet": [
        {"query": "book a flight", "times": 3, "at": time.time() - 60, "fits": False, "found": FOUND},
        {"query": "send a mail", "times": 1, "at": time.time() - 7200, "fits": True, "found": FOUND},
    ],
}


class AdminFake:
    async def request_admin(self, method: str, path: str) -> Json:
        assert (method, path) == ("GET", "searches")
        return SEARCHES


async def run(monkeypatch: pytest.MonkeyPatch, output: Output) -> None:
    async def require_gateway(*_: object) -> AdminFake:
        return AdminFake()

    monkeypatch.setattr(cli, "require_gateway", require_gateway)
    assert await run_missed(CommandContext(output, TargetOptions())) == 0


async def test_searches_without_a_call_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(monkeypatch, Output())
    shown = capsys.readouterr()
    flight, mail = (line for line in shown.out.splitlines() if " a " in line)
    assert flight.split()[0] == "3" and "nothing fits well" in flight and "mail__" not in flight
    assert mail.split()[0] == "1" and "mail__send, mail__read, mail__list" in mail and "mail__drop" not in mail
    assert "9 searches since the start, 2 queries without a call" in shown.err


async def test_json_is_the_gateway_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(monkeypatch, Output(as_json=True))
    assert json.loads(capsys.readouterr().out) == SEARCHES


async def test_missed_searches_need_a_gateway() -> None:
    with pytest.raises(GatewayError, match="no gateway is running"):
        await run_missed(CommandContext(Output(), TargetOptions(no_gateway=True)))

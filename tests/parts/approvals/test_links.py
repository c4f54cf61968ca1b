"""Links in messages to administrators: each opens the page of one request for approval, and gives no rights."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import KEY, Raw, made
from tests.gateway.program import program, until
from tests.parts.approvals.lab import ERAS, Asking, Clock, asking, call, refusal
from tests.parts.approvals.test_admin import BY_ADMIN, PAY, WAITS
from tests.parts.approvals.test_program import call as call_program
from tests.parts.pins.test_gateway import write_tools
from tests.telemetry.test_alerts import Hook
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.sealing import Sealer
from toolway.parts.approvals.records import APPROVAL_LIFETIME_S, ApprovalLinks
from toolway.types import Json

pytestmark = pytest.mark.anyio
URL = "https://tools.example"


class Operator:
    """An administrator's requests, and a call of `anna` that waits."""

    def __init__(self, lab: Asking, raw: Raw, keyring: FileApiKeyStore, era: str) -> None:
        self.lab, self.raw, self.keyring, self.era = lab, raw, keyring, era

    async def ask(self, arguments: Json = PAY) -> tuple[str, str]:
        """Make a call that waits; return its id and its link."""
        waits = await call(self.raw, self.era, "echo", arguments)
        assert refusal(waits) == WAITS
        id_: str = waits.error["data"]["approvalId"]
        return id_, self.lab.links.create_url(URL, id_, time.time()).rpartition("/")[2]

    async def admin(self, method: str, path: str, body: Json | None = None, token: str = "tw_owner") -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {token}"} if token else {"authorization": ""}
        reply = await self.raw.http.request(method, f"{self.lab.base}{path}", json=body, headers=headers)
        return reply.status_code, reply.json() if "json" in reply.headers.get("content-type", "") else {}

    async def open(self, link: str, token: str = "tw_owner") -> tuple[int, Any]:
        return await self.admin("GET", f"/admin/approval-links/{link}", token=token)

    async def approve(self, id_: str, link: str | None, token: str = "tw_owner") -> int:
        body: Json = {"yes": True} if link is None else {"yes": True, "link": link}
        return (await self.admin("POST", f"/admin/approvals/{id_}", body, token))[0]


@asynccontextmanager
async def operator(folder: Path, era: str = "modern", clock: Clock | None = None) -> AsyncIterator[Operator]:
    keyring = FileApiKeyStore(folder / "keys.json", "tw_owner")
    async with (
        asking(folder, BY_ADMIN, keyring=keyring, now=clock or time.time) as lab,
        lab.raw("server/bank", made(keyring, "anna")) as raw,
    ):
        yield Operator(lab, raw, keyring, era)


@pytest.mark.parametrize("era", ERAS)
async def test_link_opens_one_request_that_is_answered_once(tmp_path: Path, era: str) -> None:
    async with operator(tmp_path, era) as boss:
        id_, link = await boss.ask()
        for _ in range(3):
            status, shown = await boss.open(link)
            assert (status, shown["id"], shown["state"]) == (200, id_, "pending"), "a GET answers nothing"
        assert refusal(await call(boss.raw, era, "echo", PAY)) == WAITS
        assert await boss.approve(id_, link) == 200
        assert await boss.approve(id_, link) == 404, "it was answered"
        assert "result" in (await call(boss.raw, era, "echo", PAY)).last
        assert (await boss.open(link))[1]["state"] == "used"
        assert await boss.approve(id_, link) == 404
        assert refusal(await call(boss.raw, era, "echo", PAY)) == WAITS, "the same link approves no second call"
        assert boss.lab.executed() == 1


async def test_link_without_administrator_access_is_rejected(tmp_path: Path) -> None:
    async with operator(tmp_path) as boss:
        id_, link = await boss.ask()
        for token, status in (("", 401), ("tw_made_up", 401), (made(boss.keyring, "guest"), 403), (link, 401)):
            assert (await boss.open(link, token))[0] == status
            assert await boss.approve(id_, link, token) == status
        for method in ("GET", "HEAD"):
            page = await boss.raw.http.request(method, f"{boss.lab.base}/dashboard/approvals/{link}")
            assert page.status_code == 200 and "pay 100" not in page.text, "the page of everybody, without data"
        [waiting] = await boss.lab.waiting()
        assert waiting.id == id_ and boss.lab.executed() == 0


async def test_forged_swapped_and_expired_links_have_no_effect(tmp_path: Path) -> None:
    clock = Clock()
    async with operator(tmp_path, clock=clock) as boss:
        id_, link = await boss.ask()
        other, other_link = await boss.ask({"text": "pay 200"})
        forged = [link[:at] + ("A" if link[at] != "A" else "B") + link[at + 1 :] for at in range(0, len(link), 5)]
        forged += [link + "A", link[:-1], link + "=", id_, other_link[:30] + link[30:], "A" * 20_000]
        forged.append(ApprovalLinks(bytes(32)).create_url(URL, id_, time.time()).rpartition("/")[2])
        sealer = Sealer(KEY, time.time)
        forged += [sealer.seal(kind, id_, 900) for kind in ("state", "task", "approval record")]
        for each in forged:
            assert (await boss.open(each))[0] in (404, 414, 431), each[:80]
            assert await boss.approve(id_, each) == 404, each[:80]
        assert await boss.approve(id_, other_link) == 404, "the link of another request"
        assert await boss.approve(other, link) == 404
        assert (await boss.admin("POST", f"/admin/approvals/{id_}", {"yes": True, "link": 7}))[0] == 400
        assert len(await boss.lab.waiting()) == 2
        old = boss.lab.links.create_url(URL, id_, time.time() - APPROVAL_LIFETIME_S).rpartition("/")[2]
        assert (await boss.open(old))[0] == 404 and await boss.approve(id_, old) == 404
        clock.moved = APPROVAL_LIFETIME_S
        assert (await boss.open(link))[0] == 404 and await boss.approve(id_, link) == 404
        assert refusal(await call(boss.raw, "modern", "echo", PAY)) == WAITS and boss.lab.executed() == 0
        assert "approved" not in boss.lab.actions


async def test_webhook_gets_link_to_the_request(tmp_path: Path) -> None:
    hook = Hook(*[200] * 4)
    entry = write_tools(tmp_path, pay="Pays.")
    async with hook.served() as url:
        block: Any = {"approve": {"bank.*": "admin"}, "alerts": {"webhook": url}}
        async with program(tmp_path, {"bank": entry}, **block) as run:
            id_ = (await call_program(run, "modern", city="Bern"))["approvalId"]
            await until(lambda: hook.got, 10)
            [message] = hook.got
            start = f"http://127.0.0.1:{run.port}/dashboard/approvals/"
            assert message["link"].startswith(start) and message["text"].endswith(message["link"])
            assert "Bern" not in str(message), "no arguments"
            link = message["link"].removeprefix(start)
            status, shown = await run.get(f"/admin/approval-links/{link}")
            assert (status, shown["id"], shown["state"]) == (200, id_, "pending")
            body = {"yes": True, "link": link}
            assert (await run.request("POST", f"/admin/approvals/{id_}", body))[0] == 200
            assert await call_program(run, "modern", city="Bern") == "done"
            run.write({"bank": entry}, **block, gateway={"url": f"{URL}/toolway/"})
            await until(lambda: "configuration reloaded" in run.log)
            await call_program(run, "modern", city="Rome")
            await until(lambda: len(hook.got) > 1, 10)
            assert hook.got[1]["link"].startswith(f"{URL}/toolway/dashboard/approvals/")
            files = [each.read_text() for each in (tmp_path / "state" / "alerts").rglob("*.md")]
            assert files and not any("/dashboard/" in each for each in files)


def test_public_url_is_configured_or_derived_from_login() -> None:
    assert parse_gateway({"gateway": {"url": f"{URL}/x/"}}, {}).public_url == f"{URL}/x"
    assert parse_gateway({}, {}).public_url == ""
    login = {"issuer": "https://login.example", "audience": f"{URL}/toolway/mcp"}
    assert parse_gateway({"gateway": {"login": login}}, {}).public_url == f"{URL}/toolway"
    for bad in ("tools.example", "ftp://x", "https://", "https://u:p@x", "https://x/?a", "https://x/#a", "https://x y"):
        with pytest.raises(ConfigError, match=r"toolway\.gateway\.url"):
            parse_gateway({"gateway": {"url": bad}}, {})

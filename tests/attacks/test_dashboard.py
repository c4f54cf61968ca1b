"""Attacks on the dashboard by a hostile server, or with an old dashboard session."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway import edge_lab
from tests.gateway.edge_lab import TOKEN, Edge, edge
from toolway import Server
from toolway.gateway.admin.dashboard import MAX_ENDED_SESSIONS, EndedSessions
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore

pytestmark = pytest.mark.anyio


async def log_in(found: Edge, token: str = TOKEN) -> dict[str, str]:
    """The headers of a session that was opened with a token."""
    answer = await found.ask("POST", "/dashboard/session", token=token)
    assert answer.status == 200
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return {"Cookie": cookie, "X-Toolway-Page": json.loads(answer.body)["page"]}


async def status(found: Edge, session: dict[str, str]) -> int:
    # Each gateway of a test has its own port, and the cookie is named after it.
    cookie = f"toolway-{found.port}={session['Cookie'].partition('=')[2]}"
    return (await found.ask("GET", "/admin/servers", fields=session | {"Cookie": cookie}, token=None)).status


async def log_out(found: Edge, session: dict[str, str]) -> int:
    fields = {"X-Toolway-Page": session["X-Toolway-Page"]}  # the path of the cookie is /admin
    return (await found.ask("DELETE", "/dashboard/session", fields=fields, token=None)).status


@pytest.mark.attack("W2")
async def test_session_ends_when_its_token_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge(tmp_path) as found:
        session = await log_in(found)
        assert await status(found, session) == 200
    async with edge(tmp_path) as found:  # the gateway was started again
        assert await status(found, session) == 200
    monkeypatch.setattr(edge_lab, "TOKEN", "tw_a-new-token-of-this-machine")
    async with edge(tmp_path) as found:
        assert await status(found, session) == 401


@pytest.mark.attack("W2")
async def test_login_link_ends_when_its_key_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge(tmp_path) as found:
        key = found.key(admin=True)
        link = json.loads((await found.ask("POST", "/admin/dashboard-links", token=key)).body)["path"]
        assert found.keyring.revoke_key_sync(found.keyring.list_keys()[0].id)
        code = {"X-Toolway-Code": link.rpartition("=")[2]}
        assert (await found.ask("POST", "/dashboard/session", fields=code, token=None)).status == 401


@pytest.mark.attack("W2")
async def test_session_is_rejected_after_logout_and_restart(tmp_path: Path) -> None:
    file = tmp_path / "ended-sessions.json"

    async with edge(tmp_path, ended_sessions=EndedSessions(file)) as found:
        first, second = await log_in(found), await log_in(found)
        assert await log_out(found, first) == 204
        assert (await status(found, first), await status(found, second)) == (401, 200)
    assert file.stat().st_mode & 0o077 == 0
    async with edge(tmp_path, ended_sessions=EndedSessions(file)) as found:  # after a restart too
        assert (await status(found, first), await status(found, second)) == (401, 200)


@pytest.mark.attack("W2")
async def test_event_stream_ends_at_logout(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        first, second = await log_in(found), await log_in(found)
        async with found.connected() as ended, found.connected() as other:
            for client, session in ((ended, first), (other, second)):
                fields = session | {"Accept": "text/event-stream"}
                await client.send(found.request("GET", "/admin/events", fields=fields, token=None))
                assert (await client.head()).status == 200
            assert await log_out(found, first) == 204
            await ended.closed()
            assert not other.reader.at_eof()


@pytest.mark.attack("W2")
async def test_made_up_logout_ends_no_session(tmp_path: Path) -> None:
    ended = EndedSessions(tmp_path / "ended.json")
    async with edge(tmp_path, ended_sessions=ended) as found:
        session = await log_in(found)
        page = session["X-Toolway-Page"]
        for made_up in ("", "x", page[:-2] + "AA", page + "A", session["Cookie"].partition("=")[2]):
            assert await log_out(found, {"X-Toolway-Page": made_up}) == 204
        assert len(ended) == 0
        assert await status(found, session) == 200


def test_ended_sessions_are_bounded_and_expire(tmp_path: Path) -> None:
    now = [0.0]
    ended = EndedSessions(tmp_path / "ended.json", lambda: now[0])
    for number in range(MAX_ENDED_SESSIONS + 10):
        ended.add(str(number), until=100.0 + number, save=False)
    assert len(ended) == MAX_ENDED_SESSIONS
    ended.add("last", until=1e6)
    assert "last" in ended and "0" not in ended
    assert "last" in EndedSessions(tmp_path / "ended.json", lambda: now[0])
    now[0] = 1e5
    assert len(EndedSessions(tmp_path / "ended.json", lambda: now[0])) == 1
    (tmp_path / "ended.json").write_text("nonsense")
    assert len(EndedSessions(tmp_path / "ended.json", lambda: now[0])) == 0


@pytest.mark.attack("R3-held-2")
async def test_login_code_is_used_once_and_from_the_own_page_only(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:

        async def new_code() -> str:
            link = json.loads((await found.ask("POST", "/admin/dashboard-links")).body)["path"]
            return str(link.rpartition("=")[2])

        code = await new_code()
        elsewhere = f"http://127.0.0.1:{found.port + 1}"
        for fields in (
            *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "none", "")),
            *({"Origin": origin} for origin in ("https://evil.example", "null", elsewhere, "")),
        ):
            for credential, token in (({"X-Toolway-Code": code}, None), ({}, TOKEN)):
                answer = await found.ask("POST", "/dashboard/session", fields={**fields, **credential}, token=token)
                assert answer.status == 403 and "set-cookie" not in answer.headers, fields
        for path in (f"/dashboard/session?code={code}", f"/dashboard/session?x-toolway-code={code}"):
            assert (await found.ask("POST", path, fields={"Cookie": f"code={code}"}, token=None)).status in (401, 404)
        assert (await found.ask("GET", "/dashboard/session", fields={"X-Toolway-Code": code}, token=None)).status == 405
        answer = await found.ask("POST", "/dashboard/session", fields={"X-Toolway-Code": code}, token=None)
        assert answer.status == 200 and "SameSite=Strict" in answer.headers["set-cookie"]
        assert (
            await found.ask("POST", "/dashboard/session", fields={"X-Toolway-Code": code}, token=None)
        ).status == 401


@pytest.mark.attack("R3-held-2")
async def test_session_cookie_of_another_user_is_rejected(tmp_path: Path) -> None:
    """By a cookie that a page at another port of this host has set: cookies are not bound to a port."""
    async with edge(tmp_path) as found:
        mallory, person = await log_in(found), await log_in(found)
        of_mallory = mallory["Cookie"]
        for cookie in (of_mallory, f"{of_mallory}; {person['Cookie']}", f"{person['Cookie']}; {of_mallory}"):
            fields = {**person, "Cookie": cookie}
            assert (await found.ask("GET", "/admin/servers", fields=fields, token=None)).status == 401
        assert await status(found, person) == 200


@pytest.mark.attack("R3-held-2")
async def test_dashboard_path_causes_no_redirect_or_header(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for path in (
            *("/dashboard//evil.example", "/dashboard/..//evil.example", "/dashboard/%2f%2fevil.example"),
            *("/dashboard/%0d%0aSet-Cookie:%20a=b", "/dashboard?next=https://evil.example", "//evil.example/dashboard"),
            "/dashboard/files/%2e%2e/index.html",
        ):
            answer = await found.ask("GET", path, token=None)
            assert answer.status in (200, 400, 401, 404), path
            assert not {"location", "set-cookie", "refresh"} & {name.lower() for name in answer.headers}, path
            assert b"evil.example" not in answer.body, path


HOSTILE = Path(__file__).resolve().parents[2] / "dashboard" / "walk" / "bad_servers.py"


async def shown(url: str, folder: Path) -> str:
    """The document that a real browser makes of a page, once the page has fetched its data."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--virtual-time-budget=8000"]
    process = await asyncio.create_subprocess_exec(
        *("chromium", *words, "--dump-dom", url), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    async with asyncio.timeout(90):
        out, _ = await process.communicate()
    return out.decode()


@pytest.mark.attack("held-19")
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
async def test_server_content_runs_no_script_in_the_dashboard(tmp_path: Path) -> None:
    server = Server(command=sys.executable, args=(str(HOSTILE), "hostile"))
    async with HubCore({"hostile": server}, callbacks=NoHubCallbacks()) as hub:
        await hub.servers.wait_ready(timeout=60)
        gateway = Gateway(hub, bytes(32), FileApiKeyStore(tmp_path / "keys.json", TOKEN))
        base = f"http://127.0.0.1:{await gateway.listen('127.0.0.1', 0)}/dashboard"
        try:
            for page in ("tools", "tools/hostile/speak"):
                code = gateway.dashboard_url().partition("#")[2]  # works once
                document = await shown(f"{base}/{page}#{code}", tmp_path / page.replace("/", "-"))
                assert "&lt;img src=x onerror" in document, page  # it is there, as text
                scripts = re.findall(r"<script([^>]*)>", document)
                assert len(scripts) == 1 and 'src="/dashboard/files/' in scripts[0], page
                assert not re.search(r"<(img|svg)[^>]* on\w+=|<img src=.?x", document), page
        finally:
            hurry = asyncio.Event()
            hurry.set()
            await gateway.drain(hurry, 0, 0)

"""The dashboard's door: a code works once, a session has two halves, and the page may load nothing from elsewhere."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.gateway.edge_lab import TOKEN, Edge, edge
from tests.http.raw_client import Answer
from toolway.gateway.admin import dashboard
from toolway.gateway.admin.dashboard import BrowserSessions
from toolway.gateway.principals import LOCAL_ADMIN, FileApiKeyStore
from toolway.gateway.sealing import Sealer

pytestmark = pytest.mark.anyio


async def opened(found: Edge, token: str = TOKEN) -> tuple[str, str]:
    """A session by a link: its cookie and the key of its page."""
    link = json.loads((await found.ask("POST", "/admin/dashboard-links", token=token)).body)["path"]
    code = link.removeprefix("/dashboard/#code=")
    return halves(await found.ask("POST", "/dashboard/session", fields={"X-Toolway-Code": code}, token=None))


def halves(answer: Answer) -> tuple[str, str]:
    assert answer.status == 200, answer
    cookie = answer.headers["set-cookie"]
    assert "; HttpOnly" in cookie and "; SameSite=Strict" in cookie and "; Path=/admin" in cookie
    return cookie.partition(";")[0], json.loads(answer.body)["page"]


@pytest.mark.attack("held-17")
async def test_login_code_opens_a_session_once(tmp_path: Path):
    async with edge(tmp_path) as found:
        link = json.loads((await found.ask("POST", "/admin/dashboard-links")).body)["path"]
        code = {"X-Toolway-Code": link.rpartition("=")[2]}
        cookie, page = halves(await found.ask("POST", "/dashboard/session", fields=code, token=None))
        fields = {"Cookie": cookie, "X-Toolway-Page": page}
        assert (await found.ask("GET", "/admin/overview", fields=fields, token=None)).status == 200
        again = await found.ask("POST", "/dashboard/session", fields=code, token=None)
        assert again.status == 401 and b"toolway ui" in again.body


@pytest.mark.attack("held-16")
async def test_incomplete_session_gets_401(tmp_path: Path):
    async with edge(tmp_path) as found:
        cookie, page = await opened(found)
        _, other = await opened(found)
        for fields in (
            {"Cookie": cookie},
            {"X-Toolway-Page": page},
            {"Cookie": cookie, "X-Toolway-Page": other},
            {"Cookie": f"{cookie}x", "X-Toolway-Page": page},
            {"Cookie": f"{cookie}; {cookie}", "X-Toolway-Page": page},
            {"Cookie": cookie.replace("toolway-", "other-"), "X-Toolway-Page": page},
        ):
            assert (await found.ask("GET", "/admin/servers", fields=fields, token=None)).status == 401, fields


@pytest.mark.attack("held-16")
async def test_other_origins_cannot_use_a_session(tmp_path: Path):
    async with edge(tmp_path) as found:
        cookie, page = await opened(found)
        mine = {"Cookie": cookie, "X-Toolway-Page": page}
        for more, status in (
            ({"Sec-Fetch-Site": "same-origin"}, 200),
            ({"Sec-Fetch-Site": "same-site"}, 401),  # another port of this machine
            ({"Sec-Fetch-Site": "cross-site"}, 401),
            ({"Origin": f"http://127.0.0.1:{found.port}"}, 200),
            ({"Origin": "http://127.0.0.1:1"}, 403),
            ({"Origin": "https://evil.example"}, 403),
        ):
            answer = await found.ask("POST", "/admin/servers/a/restart", fields=mine | more, token=None)
            assert answer.status == status, more


@pytest.mark.attack("held-16")
async def test_session_opens_admin_routes_only(tmp_path: Path):
    async with edge(tmp_path) as found:
        cookie, page = await opened(found)
        fields = {"Cookie": cookie, "X-Toolway-Page": page}
        for method, path in (("POST", "/mcp"), ("GET", "/sse"), ("POST", "/mcp/server/a")):
            assert (await found.ask(method, path, fields=fields, token=None)).status == 401, path


async def test_session_ends_with_its_key(tmp_path: Path):
    async with edge(tmp_path) as found:
        token = found.key(admin=True)
        cookie, page = await opened(found, token)
        fields = {"Cookie": cookie, "X-Toolway-Page": page}
        assert (await found.ask("GET", "/admin/servers", fields=fields, token=None)).status == 200
        assert found.keyring.revoke_key_sync(found.keyring.list_keys()[0].id)
        assert (await found.ask("GET", "/admin/servers", fields=fields, token=None)).status == 401


async def test_session_requires_an_administrator_token(tmp_path: Path):
    async with edge(tmp_path) as found:
        assert (await found.ask("POST", "/dashboard/session", token=None)).status == 401
        assert (await found.ask("POST", "/dashboard/session", token=found.key())).status == 403
        halves(await found.ask("POST", "/dashboard/session"))
        gone = await found.ask("DELETE", "/dashboard/session", token=None)
        assert gone.status == 204 and "Max-Age=0" in gone.headers["set-cookie"]


def test_login_codes_expire_and_are_bounded(tmp_path: Path):
    now = [0.0]
    browsers = BrowserSessions(
        Sealer(bytes(32), lambda: now[0]), FileApiKeyStore(tmp_path / "keys", TOKEN), lambda: now[0]
    )
    code = browsers.issue_code(LOCAL_ADMIN)
    now[0] = dashboard.CODE_LIFETIME_S
    assert browsers.redeem(code) is None
    codes = [browsers.issue_code(LOCAL_ADMIN) for _ in range(dashboard.MAX_CODES + 1)]
    assert browsers.redeem(codes[0]) is None and browsers.redeem(codes[1]) is LOCAL_ADMIN


async def test_dashboard_page_is_public_and_loads_only_its_own_files(tmp_path: Path):
    async with edge(tmp_path) as found:
        page = await found.ask("GET", "/dashboard", token=None)
        policy, text = page.headers["content-security-policy"], page.body.decode()
        assert page.status == 200 and '<div id="root">' in text
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        for path in ("/dashboard/", "/dashboard/servers/a", "/dashboard/calls?status=failed"):
            assert (await found.ask("GET", path, token=None)).body == page.body, path
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|https?://", text)
        for name in re.findall(r"/dashboard/files/[\w.-]+", text):
            plain = await found.ask("GET", name, token=None)
            packed = await found.ask("GET", name, fields={"Accept-Encoding": "gzip"}, token=None)
            assert plain.status == 200 and "immutable" in plain.headers["cache-control"], name
            assert gzip.decompress(packed.body) == plain.body
            assert packed.headers["content-security-policy"] == policy


async def test_path_prefix_applies_to_the_page_and_its_cookie(tmp_path: Path):
    async with edge(tmp_path) as found:
        plain = await found.ask("GET", "/dashboard", token=None)
        fields = {"X-Forwarded-Prefix": "/tools/toolway/"}
        page = await found.ask("GET", "/dashboard/servers", fields=fields, token=None)
        assert page.body.count(b'"/tools/toolway/dashboard/files/') == plain.body.count(b'"/dashboard/files/') == 3
        packed = await found.ask("GET", "/dashboard", fields={**fields, "Accept-Encoding": "gzip"}, token=None)
        assert gzip.decompress(packed.body) == page.body
        session = await found.ask("POST", "/dashboard/session", fields=fields, token=found.key(admin=True))
        assert "; Path=/tools/toolway/admin;" in session.headers["set-cookie"]
        for wrong in ("//evil.example", "https://evil.example", '/x"><script>', "/a b", "/..", "/" + "x" * 65, "x"):
            answer = await found.ask("GET", "/dashboard", fields={"X-Forwarded-Prefix": wrong}, token=None)
            assert answer.body == plain.body, wrong


@pytest.mark.attack("held-18")
async def test_only_dashboard_files_are_served(tmp_path: Path):
    async with edge(tmp_path) as found:
        for name in ("", "..", "../admin.py", "%2e%2e/admin.py", "nothing.js", "inputs", "/etc/passwd"):
            answer = await found.ask("GET", f"/dashboard/files/{name}", token=None)
            assert answer.status == 404, name
        for method in ("POST", "PUT", "DELETE"):
            assert (await found.ask(method, "/dashboard/", token=None)).status == 405
        large = await found.ask("POST", "/dashboard/session", b"x" * 10, token=None)
        assert large.status == 413
        page = await found.ask("GET", "/dashboard", fields={"Host": "evil.example"}, token=None)
        assert page.status == 421

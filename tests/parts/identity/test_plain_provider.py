"""A gateway and a real provider whose access tokens have the type `JWT`, npm `oauth2-mock-server`.

`make clients ARGS=login` installs it.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.parts.identity import test_oidc_provider
from tests.parts.identity.test_login import ERAS, ask, text_of
from tests.parts.identity.test_oidc_provider import NODE, ROOT, with_provider
from toolway.parts.identity.access_tokens import parse_token

FOLDER = ROOT / ".interop" / "login-plain"
PROGRAM = Path(__file__).with_name("plain_provider.mjs")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not NODE.exists() or not (FOLDER / "node_modules" / "oauth2-mock-server").is_dir(),
        reason="npm oauth2-mock-server is not installed: make clients ARGS=login",
    ),
]


@pytest.fixture(autouse=True)
def plain_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_oidc_provider, "FOLDER", FOLDER)
    monkeypatch.setattr(test_oidc_provider, "PROGRAM", PROGRAM)


async def get_tokens(client: httpx2.AsyncClient, url: str, **form: str) -> dict[str, str]:
    answer = await client.post(f"{url}/token", data={"scope": "tools:read", **form})
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = answer.json()
    return found


async def test_jwt_access_tokens_work_in_both_eras_but_not_id_tokens(tmp_path: Path):
    async with with_provider(tmp_path) as (found, login, url), httpx2.AsyncClient() as client:
        token = (await get_tokens(client, url, grant_type="client_credentials"))["access_token"]
        assert parse_token(token).type == "jwt"
        by_code = {"grant_type": "authorization_code", "code": "x", "redirect_uri": "http://127.0.0.1:9/"}
        person = await get_tokens(client, url, client_id="claude", **by_code)
        other = await get_tokens(client, url, grant_type="client_credentials", audience="https://other.example/mcp")
        for era in ERAS:
            assert text_of(await ask(found, era, token)) == "x"
            denied = await ask(found, era, token, {"name": "b__echo", "arguments": {"text": "x"}})
            assert b"Unknown tool" in denied.body
            for bad in (person["id_token"], other["access_token"], token[:-4] + "AAAA"):
                assert (await ask(found, era, bad)).status == 401
        assert not login.keys.problem and len(login.keys.current or ()) == 1

"""Who is logged in, who am I, and the end of a login before its token expires. Keys with an end date, too."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.gateway.edge_lab import TOKEN, edge, handshake, modern
from tests.parts.identity.issuer import ISSUER, Issuer, guarded, login_at
from tests.parts.identity.test_login import CALL, ERAS, ask, text_of
from toolway.errors import ConfigError
from toolway.gateway.principals import ENDED_LOGINS_S, FileApiKeyStore
from toolway.parts.identity.provider import principal_id

pytestmark = pytest.mark.anyio
ALICE = principal_id(ISSUER, "alice")


async def test_every_caller_can_read_its_own_identity(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        token = issuer.token(preferred_username="alice@acme", groups=["eng", "staff"])
        person = json.loads((await found.ask("GET", "/who", token=token)).body)
        assert person == {
            "id": ALICE,
            "name": "alice@acme",
            "kind": "user",
            "admin": False,
            "access": ["eng"],
            "expires": pytest.approx(issuer.now + 660, abs=2),
            "issuer": ISSUER,
            "subject": "alice",
            "client": "claude",
            "groups": ["eng", "staff"],
        }
        key = json.loads((await found.ask("GET", "/who", token=found.key("both"))).body)
        assert (key["kind"], key["access"], key["expires"]) == ("key", ["both"], None)
        owner = json.loads((await found.ask("GET", "/who")).body)
        assert (owner["kind"], owner["admin"], owner["access"]) == ("local", True, None)
        assert (await found.ask("POST", "/who")).status == 404


@pytest.mark.parametrize("era", ERAS)
async def test_ended_login_is_rejected_at_once_despite_cached_head(tmp_path: Path, era: str):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found, found.connected() as client, found.connected() as stream:
        token, bob = issuer.token(), issuer.token(sub="bob")
        session = {"Mcp-Session-Id": await found.initialize(token=token)}
        await stream.send(found.request("GET", "/mcp", b"", session, token=token))
        assert (await stream.head()).status == 200
        body, fields = modern("tools/call", CALL) if era == "modern" else (handshake("tools/call", CALL), session)
        request = found.request("POST", "/mcp", body, fields, token=token)
        for _ in range(3):
            assert text_of(await client.ask(request)) == "x"
        ended = await found.ask("DELETE", "/admin/sessions/alice")
        assert json.loads(ended.body) == {"ended": ALICE, "known": True}
        await stream.closed()
        answer = await client.ask(request)
        assert answer.status == 401 and "the login was ended" in answer.headers["www-authenticate"]
        assert (await ask(found, era, issuer.token(jti="another"))).status == 401  # issued before the end
        assert (await ask(found, era, issuer.token(iat=None))).status == 401  # it does not say when it was issued
        assert text_of(await ask(found, era, bob)) == "x"
        login = login_at(found.gateway)
        assert login.find_user(ALICE) is None
        login._now = lambda: time.time() + 300
        later = issuer.token(iat=int(issuer.now) + 200, exp=int(issuer.now) + 900)
        assert text_of(await ask(found, era, later)) == "x"  # a new login


async def test_logins_are_listed_and_ended_by_subject_id_or_name(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        for subject, name in (("1", "alice"), ("2", "sam"), ("3", "sam")):
            await found.call("a__echo", {"text": "x"}, token=issuer.token(sub=subject, preferred_username=name))
        answer = json.loads((await found.ask("GET", "/admin/sessions")).body)
        listed, provider = answer["sessions"], answer["provider"]
        assert (provider["issuer"], provider["keys"], provider["problem"]) == (ISSUER, 1, "")
        assert [(each["subject"], each["name"]) for each in listed] == [("3", "sam"), ("2", "sam"), ("1", "alice")]
        assert (await found.ask("DELETE", "/admin/sessions/sam")).status == 404  # two users
        for who, id_ in (
            ("alice", principal_id(ISSUER, "1")),
            ("2", principal_id(ISSUER, "2")),
            (principal_id(ISSUER, "3"), principal_id(ISSUER, "3")),
            ("unseen%2Fperson", principal_id(ISSUER, "unseen/person")),
        ):
            answer = json.loads((await found.ask("DELETE", f"/admin/sessions/{who}")).body)
            assert answer == {"ended": id_, "known": who != "unseen%2Fperson"}
        assert json.loads((await found.ask("GET", "/admin/sessions")).body)["sessions"] == []
        assert found.keyring.list_keys() == []
        person = issuer.token(sub="9")
        assert (await found.ask("DELETE", "/admin/sessions/9", token=person)).status == 403


async def test_gateway_without_login_lists_no_sessions(tmp_path: Path):
    async with edge(tmp_path) as found:
        listed = await found.ask("GET", "/admin/sessions")
        assert json.loads(listed.body) == {"provider": None, "sessions": []}
        answer = await found.ask("DELETE", "/admin/sessions/alice")
        assert answer.status == 422 and b"E-LOGIN-NONE" in answer.body


async def test_ended_logins_survive_restart_and_expire_after_a_month(tmp_path: Path):
    store = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    token, key = store.create_key_sync("ci", None, False, 0.0)
    await store.end_logins("user:a", 1000.0)
    await store.end_logins("user:a", 2000.0)
    again = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    assert again.ended_logins() == {"user:a": 2000.0}
    assert again.list_keys() == [key] and again.authenticate(token) is not None
    entry = next(each for each in again._keys.values() if each.ended_user)
    assert again.principal_for(entry.id) is None and again.authenticate(entry.hash) is None
    await again.end_logins("user:b", 3000.0 + ENDED_LOGINS_S)
    assert again.ended_logins() == {"user:b": 3000.0 + ENDED_LOGINS_S} and again.list_keys() == [key]


@pytest.mark.parametrize("era", ERAS)
async def test_expired_key_is_rejected(tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch):
    async with edge(tmp_path) as found, found.connected() as client:
        made = await found.ask("POST", "/admin/keys", {"name": "ci", "expires": time.time() + 3600})
        token, id_ = (json.loads(made.body)[name] for name in ("token", "id"))
        fields = {"Mcp-Session-Id": await found.initialize(token=token)}
        body = handshake("tools/call", CALL)
        if era == "modern":
            body, fields = modern("tools/call", CALL)
        request = found.request("POST", "/mcp", body, fields, token=token)
        for _ in range(3):
            assert text_of(await client.ask(request)) == "x"
        assert json.loads((await found.ask("GET", "/who", token=token)).body)["expires"] > time.time()
        later = time.time() + 3601
        monkeypatch.setattr(time, "time", lambda: later)
        assert (await client.ask(request)).status == 401
        assert found.keyring.principal_for(id_) is None and len(found.keyring.list_keys()) == 1


@pytest.mark.parametrize("expires", [0, -1, 10**20, "tomorrow", True])
async def test_key_with_invalid_expiry_is_not_created(tmp_path: Path, expires: object):
    async with edge(tmp_path) as found:
        assert (await found.ask("POST", "/admin/keys", {"name": "ci", "expires": expires})).status in (400, 422)
        assert found.keyring.list_keys() == []


def test_key_expiry_must_be_in_the_future(tmp_path: Path):
    store = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    with pytest.raises(ConfigError, match="in the future"):
        store.create_key_sync("ci", None, False, 1000.0, None, False, 999.0)

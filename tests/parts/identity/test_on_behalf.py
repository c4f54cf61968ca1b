"""Servers that are called on behalf of users: one token per user and server, and no other credential, ever."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import TOKEN, Edge
from tests.parts.identity.exchange_lab import SECRET, ExchangeIssuer, Target, on_behalf
from tests.parts.identity.issuer import login_at
from tests.parts.identity.test_login import ask
from toolway.auth.exchange_manager import ExchangeManager, TokenEndpoints
from toolway.auth.token_exchange import ID_JAG_TYPE, JWT_BEARER_GRANT, SubjectToken
from toolway.auth.token_manager import TokenOwner
from toolway.config.schema import OAuth, Server
from toolway.config.server_entry import parse_entry
from toolway.errors import ConfigError
from toolway.parts.identity.provider import principal_id
from toolway.types import AuthError

pytestmark = pytest.mark.anyio
CALL = {"name": "jira__echo", "arguments": {"text": "x"}}


@pytest.fixture
async def issuer() -> AsyncIterator[ExchangeIssuer]:
    async with ExchangeIssuer() as found:
        yield found


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("server_era", ["modern", "legacy"])
async def test_each_user_is_called_for_with_their_own_token(
    tmp_path: Path, issuer: ExchangeIssuer, era: str, server_era: str
) -> None:
    target = Target(issuer, era=server_era)
    async with on_behalf(tmp_path, issuer, {"jira": target}) as found:
        for person in ("alice", "bob", "alice"):
            answer = await ask(found, era, issuer.token(person), CALL)
            assert answer.status == 200 and b'"x"' in answer.body, answer.body
    assert target.callers(issuer) == {"alice": 2, "bob": 1}
    assert set(issuer.exchanged.values()) == {1} and len(issuer.exchanged) == 2
    form = issuer.forms[0]
    assert (form["resource"], form["audience"], form["scope"]) == (target.url, target.url, "read")
    assert form["client"] == f"gateway:{SECRET}"
    inbound = ["ey" in each for each in target.seen]
    assert not any(inbound), "the token of the caller went to the server"


@pytest.mark.parametrize("count", [6, pytest.param(50, marks=pytest.mark.slow)])
async def test_concurrent_users_need_one_exchange_per_server(
    tmp_path: Path, issuer: ExchangeIssuer, count: int
) -> None:
    targets = {name: Target(issuer) for name in ("s1", "s2", "s3", "s4")}
    async with on_behalf(tmp_path, issuer, targets) as found:
        people = {f"p{n}": issuer.token(f"p{n}") for n in range(count)}

        async def call(person: str, server: str) -> None:
            answer = await found.call(f"{server}__echo", {"text": person}, token=people[person])
            assert answer.get("result", {}).get("content", [{}])[0].get("text") == person, answer

        await asyncio.gather(*(call(person, server) for person in people for server in targets for _ in range(2)))
    assert len(issuer.exchanged) == 4 * count and set(issuer.exchanged.values()) == {1}
    for target in targets.values():
        assert target.callers(issuer) == dict.fromkeys(people, 2)


async def refused(found: Edge, token: str) -> str:
    answer = await found.call("jira__echo", {"text": "x"}, token=token)
    return json.dumps(answer)


@pytest.mark.parametrize(
    "answer",
    [
        {"scope": "read write"},
        {"iss": "https://other.example"},
        {"token_type": "N_A"},
        {"issued_token_type": ID_JAG_TYPE},
        {"access_token": ""},
        {"access_token": "a b"},
    ],
)
async def test_unexpected_exchange_response_is_rejected(tmp_path: Path, issuer: ExchangeIssuer, answer: Any) -> None:
    target = Target(issuer)
    async with on_behalf(tmp_path, issuer, {"jira": target}) as found:
        issuer.answer = answer
        assert "E-AUTH-EXCHANGE" in await refused(found, issuer.token())
    assert target.sent == [] and not any("authorization" in each for each in target.seen)


async def test_nothing_is_sent_without_a_user_token(tmp_path: Path, issuer: ExchangeIssuer) -> None:
    target = Target(issuer)
    async with on_behalf(tmp_path, issuer, {"jira": target}) as found:
        for token in (found.key(), TOKEN):  # an API key, and the owner of the gateway
            assert "jira__echo" not in await found.tools(token=token)
            answer = await refused(found, token)
            assert "E-AUTH-EXCHANGE" in answer and "log in" in answer
        issuer.status = 400
        assert "E-AUTH-EXCHANGE" in await refused(found, issuer.token("eve"))
    assert target.sent == [] and len(issuer.forms) == 1 and issuer.valid == {}


async def test_user_sees_only_tools_of_own_connection(tmp_path: Path, issuer: ExchangeIssuer) -> None:
    target = Target(issuer)
    serve = target.endpoint.serve

    async def less_for_bob(exchange: Any) -> None:
        shown = exchange.request.headers.get("authorization", "").removeprefix("Bearer ")
        if issuer.owners.get(shown) == "bob" and b'"tools/list"' in exchange.request.body:
            message = json.loads(exchange.request.body)
            tool = {"name": "echo", "inputSchema": {"type": "object"}}
            result = {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            exchange.respond_json({"jsonrpc": "2.0", "id": message["id"], "result": result})
        else:
            await serve(exchange)

    target.endpoint.serve = less_for_bob  # type: ignore[method-assign]
    async with on_behalf(tmp_path, issuer, {"jira": target}) as found:
        alice = await found.tools(token=issuer.token("alice"))
        bob = await found.tools(token=issuer.token("bob"))
        assert "jira__echo" in alice and len(alice) > 3
        assert bob == ["jira__echo"]
        assert "error" in await found.call("jira__counter", {}, token=issuer.token("bob"))
        assert await found.tools(token=issuer.token("alice")) == alice
        assert await found.tools(token=found.key()) == []


async def test_ended_login_ends_its_tokens(tmp_path: Path, issuer: ExchangeIssuer) -> None:
    target = Target(issuer)
    async with on_behalf(tmp_path, issuer, {"jira": target}) as found:
        token = issuer.token("alice")
        assert "result" in await found.call("jira__echo", {"text": "x"}, token=token)
        alice = principal_id(issuer.issuer, "alice")
        await found.keyring.end_logins(alice, time.time())
        assert (await ask(found, "modern", token, CALL)).status == 401
        login = login_at(found.gateway)
        assert login.find_subject_token(alice) is None and login.is_login_ended(alice)


class People:
    """Source of subject tokens for a manager alone."""

    def __init__(self, *names: str) -> None:
        self.tokens = {name: SubjectToken(f"inbound-{name}", "https://login.example", 1e12) for name in names}
        self.ended: set[str] = set()

    def find_subject_token(self, caller: str) -> SubjectToken | None:
        return self.tokens.get(caller) if caller not in self.ended else None

    def is_login_ended(self, caller: str) -> bool:
        return caller in self.ended

    def is_token_ended(self, caller: str, issued_at: float | None) -> bool:
        return caller in self.ended

    def opens_gateway(self, token: str) -> bool:
        return token.startswith("inbound-")


class Wire:
    """Issuer without a network: counts, fails on request."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sent: list[tuple[str, Any]] = []
        self.is_down = False
        self.lifetime = 300

    async def send(self, url: str, request: Any) -> tuple[int, bytes]:
        self.sent.append((url, request))
        number = len(self.sent)
        await asyncio.sleep(0)
        if self.is_down:
            raise AuthError("the authorization server cannot be reached", code="E-AUTH-SERVER")
        host = url.split("/")[2]
        if request is None:
            return 200, json.dumps({"issuer": f"https://{host}", "token_endpoint": f"https://{host}/t"}).encode()
        kind = request.form.get("requested_token_type")
        said = {"access_token": f"t{number}", "token_type": "Bearer", "expires_in": self.lifetime}
        return 200, json.dumps({**said, **({"issued_token_type": kind} if kind else {})}).encode()

    def manager(self, people: People, settings: OAuth, principal: str = "alice") -> ExchangeManager:
        owner = TokenOwner("jira", "https://jira.example/mcp", principal)
        return ExchangeManager(
            owner, settings, lambda: people, TokenEndpoints(lambda: self.now), lambda: self.now, self.send
        )


async def test_token_is_renewed_early_and_kept_if_issuer_is_down() -> None:
    wire, people = Wire(), People("alice")
    manager = wire.manager(people, OAuth(grant="exchange"))
    first = await manager.authorization_header()
    wire.now += 239
    assert await manager.authorization_header() == first and manager.exchanges == 1
    wire.now += 2  # less than 60 s are left
    wire.is_down = True
    assert await manager.authorization_header() == first
    assert await manager.authorization_header() == first and len(wire.sent) == 3  # not asked again at once
    wire.now += 60
    with pytest.raises(AuthError) as failed:
        await manager.authorization_header()
    assert failed.value.code == "E-AUTH-SERVER"
    wire.is_down = False
    wire.now += 10
    assert await manager.authorization_header() not in ("", first)
    people.ended.add("alice")
    with pytest.raises(AuthError) as failed:
        await manager.authorization_header()
    assert failed.value.code == "E-AUTH-EXCHANGE" and "log in" in failed.value.hint
    assert manager.is_unused


async def test_concurrent_calls_share_exchange_and_metadata() -> None:
    wire, people = Wire(), People("alice")
    manager = wire.manager(people, OAuth(grant="exchange"))
    assert len(set(await asyncio.gather(*(manager.authorization_header() for _ in range(100))))) == 1
    assert len(wire.sent) == 2 and not manager.allows("bob") and manager.allows("alice")
    without_caller = wire.manager(people, OAuth(grant="exchange"), "")
    assert not without_caller.allows("")
    with pytest.raises(AuthError):
        await without_caller.authorization_header()


async def test_50_users_and_4_servers_need_one_exchange_each() -> None:
    wire, people = Wire(), People(*(f"p{n}" for n in range(50)))
    managers = [wire.manager(people, OAuth(grant="exchange"), name) for name in people.tokens for _ in range(4)]
    headers = await asyncio.gather(*(each.authorization_header() for each in managers for _ in range(5)))
    assert len(set(headers)) == 200 and all(each.exchanges == 1 for each in managers)


async def test_token_is_never_sent_to_another_issuer() -> None:
    wire, people = Wire(), People("alice")
    with pytest.raises(AuthError, match="different issuer"):
        await wire.manager(people, OAuth(grant="exchange", issuer="https://evil.example")).authorization_header()
    assert wire.sent == []


async def test_obo_and_id_jag_requests_have_their_form() -> None:
    wire, people = Wire(), People("alice")
    await wire.manager(people, OAuth(grant="obo", scopes=("api://jira/read",))).authorization_header()
    form = wire.sent[-1][1].form
    assert (form["grant_type"], form["assertion"]) == (JWT_BEARER_GRANT, "inbound-alice")
    assert (form["requested_token_use"], form["scope"]) == ("on_behalf_of", "api://jira/read")
    wire.sent.clear()
    settings = OAuth(grant="id-jag", issuer="https://auth.jira.example", client_id="c", client_secret="s")
    await wire.manager(people, settings).authorization_header()
    urls = [(url, request.form["grant_type"].rpartition(":")[2]) for url, request in wire.sent if request is not None]
    assert urls == [("https://login.example/t", "token-exchange"), ("https://auth.jira.example/t", "jwt-bearer")]
    first, second = (request.form for _, request in wire.sent if request is not None)
    assert (first["requested_token_type"], first["audience"]) == (ID_JAG_TYPE, "https://auth.jira.example")
    assert first["resource"] == "https://jira.example/mcp"
    assert "inbound-alice" not in json.dumps(second), "the token of the caller went to the issuer of the server"


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "jira-server", "auth": {"type": "exchange"}},
        {"url": "https://jira.example/mcp", "auth": {"type": "exchange"}, "shareConnection": True},
        {"url": "https://jira.example/mcp", "auth": {"type": "exchange"}, "headers": {"Authorization": "Bearer x"}},
        {"url": "https://jira.example/mcp", "auth": {"type": "exchange", "clientSecret": "s"}},
        {"url": "https://jira.example/mcp", "auth": {"type": "id-jag"}},
        {"url": "https://jira.example/mcp", "auth": {"type": "oauth", "grant": "exchange"}},
    ],
)
async def test_entry_with_another_credential_is_rejected(entry: Any) -> None:
    with pytest.raises(ConfigError):
        parse_entry(entry)


async def test_entry_can_be_on_behalf_of_the_user() -> None:
    found: Server = parse_entry({"url": "https://j.example/mcp", "auth": {"type": "exchange", "scopes": ["a"]}})
    assert found.auth is not None and found.auth.is_on_behalf and found.auth.scopes == ("a",)
    assert not OAuth().is_on_behalf


def test_subject_token_is_never_in_repr() -> None:
    assert "secret" not in repr(SubjectToken("secret", "https://login.example", 1.0))

"""Advisories of others (security.md §2) whose root cause could be ours: each test names its row.

`tests/gateway/test_logins.py` has more for rows 42 and 52, and row 50 for calls is B20 of the fault matrix.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.auth.hostile_server import Trap
from tests.auth.oauth_lab import Guarded, Issuer
from tests.cli.test_login import Shell
from tests.network.network_lab import HOME, Names, connects
from toolway import AccessDenied, CallError, Hub, ServerUnavailable
from toolway.auth.token_store import Credential, MemoryTokenStore, TokenKey
from toolway.cli.commands.login import encode_url
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import UnencodableArguments
from toolway.parts.openapi.document.request_encoder import encode_operation
from toolway.testing import FakeHttp
from toolway.types import AuthError

pytestmark = pytest.mark.anyio

REDIRECTS = (301, 302, 303, 307, 308)


def _hub(guarded: Guarded, login: Any = None, **options: Any) -> Hub:
    return Hub(
        {"guarded": {"url": guarded.url, **options.pop("entry", {})}},
        login_callback=login,
        catalog_storage=None,
        **options,
    )


async def _refused(hub: Hub, tool: str = "guarded.echo") -> str:
    async with hub:
        with pytest.raises((AccessDenied, ServerUnavailable)) as caught:
            await hub.call_tool(tool)
    return caught.value.code


async def _stored(store: MemoryTokenStore, issuer: Issuer, guarded: Guarded) -> Credential:
    """A login that was made before."""
    async with _hub(guarded, issuer.login, token_store=store) as hub:
        await hub.call_tool("guarded.echo")
    held = await store.get(TokenKey(issuer.issuer, f"guarded {guarded.url}", ""))
    assert held is not None
    return held


def _secrets(issuer: Issuer) -> list[str]:
    return [*issuer.valid, *issuer.refresh, *issuer.used, *issuer.clients.values(), *issuer.codes]


# -- row 1: what a server calls its login page is opened by a program -------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "--version",
        "-e calc",
        "vscode://x",
        "http://issuer.example/authorize",
        "https://user:pass@issuer.example/",
        "https:///nowhere",
        "https://issuer.example/\nX",
        "https://issuer.example/a b",
        "$(touch pwned)",
    ],
)
@pytest.mark.attack("held-49")
@pytest.mark.advisory("1")
def test_non_web_url_is_rejected(url: str) -> None:
    with pytest.raises(AuthError):
        encode_url(url)


@pytest.mark.advisory("1")
def test_encoded_url_has_no_shell_characters() -> None:
    spelt = encode_url("""https://issuer.example/a?x=$(touch pwned)`id`'";|<>\\{}^!&y=1#z""".replace(" ", "%20"))
    assert shlex.split(spelt.replace("&", "")) == [spelt.replace("&", "")]
    assert not set("$`'\"()|<>\\{}^ ") & set(spelt)


@pytest.mark.advisory("1")
async def test_login_url_is_one_argument_of_the_browser(tmp_path: Path) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        pwned = tmp_path / "pwned"
        issuer.metadata = {
            "authorization_endpoint": f"{issuer.issuer}/authorize?x=$(touch {pwned})`touch {pwned}`'\"|;"
        }
        shell = Shell(tmp_path, {"guarded": {"url": guarded.url}})
        code, _, err = await shell.run("login", "guarded")
        assert code == 0, err
        [arguments, _] = shell.visits()
        assert len(arguments) == 1 and "$" not in str(arguments) and "`" not in str(arguments)
        assert not pwned.exists()


# -- rows 22 and 23: what a server names is looked up once, and not gone to by way of someone else -------------------


@pytest.mark.advisory("22")
async def test_address_is_checked_at_every_connection() -> None:
    """The issuer's name leads to a good address when it is checked, and to a forbidden one a moment later."""
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        names = Names({"issuer.localhost": [HOME, "127.0.0.2"]})
        guarded.trusts = base = f"http://issuer.localhost:{urlsplit(issuer.issuer).port}"
        ends = {
            f"{name}_endpoint": f"{base}/{path}" for name, path in (("token", "token"), ("registration", "register"))
        }
        issuer.metadata = {"issuer": base, "authorization_endpoint": f"{base}/authorize", **ends}
        with connects() as seen:
            code = await _refused(_hub(guarded, issuer.login, network_policy=names.policy()))
        assert code == "E-HTTP-ADDRESS"
        assert names.asked.count("issuer.localhost") >= 2  # each connection asks once, and goes to what it was told
        assert {host for host, _ in seen} == {HOME}


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize("hop", ["resource", "metadata", "registration", "token"])
@pytest.mark.attack("held-50")
@pytest.mark.advisory("23", "50")
async def test_login_follows_no_redirect(hop: str, status: int) -> None:
    """Each step gets a redirect to an internal address: no request follows it, with or without a secret."""
    async with (
        Trap() as inside,
        Trap((status, f"{inside.url}/x")) as bent,
        Issuer() as issuer,
        Guarded(issuer) as guarded,
    ):
        entry: dict[str, Any] = {}
        if hop == "resource":
            guarded.described_at = f"{bent.url}/described"
            guarded.trusts = bent.url
        elif hop == "metadata":
            issuer.metadata = {"issuer": bent.url}
            guarded.trusts = bent.url
        elif hop == "registration":
            issuer.metadata = {"registration_endpoint": f"{bent.url}/register"}
        else:
            issuer.metadata = {"token_endpoint": f"{bent.url}/token"}
            issuer.clients["mine"] = "canary-secret"
            auth = {"clientId": "mine", "clientSecret": "canary-secret", "issuer": issuer.issuer}
            entry = {"auth": {"type": "oauth", **auth}}
        await _refused(_hub(guarded, issuer.login, entry=entry))
        assert bent.visits > 0
        assert inside.visits == 0 and inside.seen == b""


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.advisory("50")
async def test_refresh_token_is_not_sent_to_redirect(status: int) -> None:
    store = MemoryTokenStore()
    async with (
        Trap() as elsewhere,
        Trap((status, elsewhere.url)) as bent,
        Issuer() as issuer,
        Guarded(issuer) as guarded,
    ):
        issuer.metadata = {"token_endpoint": f"{issuer.issuer}/token"}
        held = await _stored(store, issuer, guarded)
        await store.put(
            TokenKey(held.issuer, f"guarded {guarded.url}", ""), replace(held, token_url=f"{bent.url}/token")
        )
        issuer.expire()
        await _refused(_hub(guarded, token_store=store))
        assert b"refresh-" in bent.seen  # the address that was agreed on at the login
        assert elsewhere.visits == 0


# -- rows 28 and 30: a value of a tool's argument stays in its place --------------------------------------------------

_DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {
        "/users/{id}/orders/{order}": {
            "delete": {  # what is empty would delete all of them
                "operationId": "order",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "order", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "q", "in": "query", "schema": {"type": "string"}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                ],
                "responses": {"200": {"description": "ok"}},
            }
        }
    },
}
NASTY = (
    *("..", ".", "../../admin", "%2e%2e", "%2e%2e%2fadmin", "a/b", ";x=1", "?x=1", "#x", "@evil.example", "//evil"),
    *("a&b=c", "a\r\nX-Evil: 1", "a\nb", "a\0b", "ü/\u2028", "\\..\\", ""),
)


@pytest.mark.parametrize("value", NASTY)
@pytest.mark.parametrize("argument", ["id", "order", "q", "X-Trace"])
@pytest.mark.advisory("28", "30")
def test_value_cannot_escape_its_parameter(argument: str, value: str) -> None:
    [operation] = load_document(json.dumps(_DOCUMENT).encode(), source="here").operations
    known = {parameter.name: parameter.argument for parameter in operation.parameters}
    arguments = {known["id"]: "7", known["order"]: "9", known[argument]: value}
    try:
        made = encode_operation(operation, arguments, "/v1")
    except UnencodableArguments:
        return  # refused: nothing is sent
    path, _, query = made.target.partition("?")
    before, users, _, orders, _ = path.rsplit("/", 4)
    assert (before, users, orders) == ("/v1", "users", "orders")
    assert all(segment not in ("", ".", "..") for segment in path.split("/")[1:])
    assert query.count("=") <= 1 and "#" not in made.target and made.target.isascii() and made.target.isprintable()
    assert {name.lower() for name, _ in made.headers} <= {"x-trace"}
    assert all(not set("\r\n\0") & set(text) for _, text in made.headers)


# -- row 41: what is for one server is for no other --------------------------------------------------------------------


@pytest.mark.advisory("41")
async def test_secrets_of_two_servers_are_never_mixed() -> None:
    async with Issuer() as one, Issuer() as two, Guarded(one) as first, Guarded(two) as second:
        issuers = {"first": one, "second": two}

        async def login(server: str, url: str) -> str:
            return await issuers[server].login(server, url)

        entries = {
            name: {"url": server.url, "headers": {"X-Canary": f"canary-of-{name}"}}
            for name, server in (("first", first), ("second", second))
        }
        plain = FakeHttp(era="modern")
        async with plain, Hub({**entries, "plain": plain.url}, login_callback=login, catalog_storage=None) as hub:
            for order in itertools.permutations(("first", "second", "plain")):
                await asyncio.gather(*(hub.call_tool(f"{name}.echo") for name in order * 3))
            for issuer in issuers.values():
                issuer.expire()  # and while tokens are renewed
            for order in itertools.permutations(("first", "second", "plain")):
                for name in order:
                    await hub.call_tool(f"{name}.echo")
        assert {sent.removeprefix("Bearer ") for sent in first.sent} & set(_secrets(two)) == set()
        assert {sent.removeprefix("Bearer ") for sent in second.sent} & set(_secrets(one)) == set()
        told = {name: "\n".join(issuer.seen) for name, issuer in issuers.items()}
        assert not [secret for secret in _secrets(one) if secret in told["second"]]
        assert not [secret for secret in _secrets(two) if secret in told["first"]]
        assert "canary-of" not in told["first"] + told["second"]


# -- row 49: a server that names another authorization server ---------------------------------------------------------


@pytest.mark.parametrize("way", ["refresh", "secret", "login"])
@pytest.mark.advisory("49")
async def test_new_issuer_gets_no_secrets_of_the_old_one(way: str) -> None:
    store = MemoryTokenStore()
    async with Issuer() as issuer, Issuer() as evil, Guarded(issuer) as guarded:
        auth: dict[str, Any] = {}
        if way == "secret":
            issuer.clients["mine"] = "canary-secret"
            auth = {
                "auth": {"type": "oauth", "clientId": "mine", "clientSecret": "canary-secret", "issuer": issuer.issuer}
            }
        async with _hub(guarded, issuer.login, token_store=store, entry=auth) as hub:
            await hub.call_tool("guarded.echo")
        verifiers = [line.partition("code_verifier=")[2].partition("&")[0] for line in issuer.seen]
        secrets = [*_secrets(issuer), *filter(None, verifiers)]
        issuer.expire()
        guarded.trusts = evil.issuer
        # A user may log in at the new one, if he wants to; what he gave the old one stays there.
        login = evil.login if way == "login" else None
        async with _hub(guarded, login, token_store=store, entry=auth) as hub:
            with pytest.raises(CallError) as caught:
                await hub.call_tool("guarded.echo")
        assert caught.value.executed == "no"
        told = "\n".join(evil.seen)
        assert len(secrets) >= 3 and not [secret for secret in secrets if secret in told]
        assert way == "login" or evil.made["authorization_code"] == 0


@pytest.mark.advisory("49")
async def test_code_from_another_issuer_is_not_exchanged() -> None:
    """The browser comes back with a code of another issuer, by its own word or by the state of another login."""
    async with Issuer() as issuer, Issuer() as evil, Guarded(issuer) as guarded:
        issuer.metadata = {"authorization_response_iss_parameter_supported": True}

        async def login(server: str, url: str) -> str:
            ended = await issuer.login(server, url)
            return f"{ended}&iss={evil.issuer}"

        await _refused(_hub(guarded, login))
        assert issuer.made["authorization_code"] == 0
        assert not evil.seen


# -- row 52: a token is for one audience ------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", ["another server", "a part of it that is not its address", "no address"])
@pytest.mark.attack("held-45")
@pytest.mark.advisory("52")
async def test_server_claiming_another_resource_gets_no_token(claim: str) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded, Guarded(issuer) as victim:
        guarded.resource = {
            "another server": victim.url,
            "a part of it that is not its address": f"{guarded.url}/deeper",
            "no address": "urn:example:everything",
        }[claim]
        assert (await _refused(_hub(guarded, issuer.login))).startswith("E-AUTH")
        assert issuer.made == {} and not any(guarded.sent) and not any(victim.sent)


@pytest.mark.advisory("52")
async def test_token_requests_name_their_server() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded, _hub(guarded, issuer.login) as hub:
        await hub.call_tool("guarded.echo")
        issuer.expire()
        await hub.call_tool("guarded.echo")
    asked = [line for line in issuer.seen if "/token" in line.split(" ")[1] or "/authorize" in line.split(" ")[1]]
    assert len(asked) == 3 and all("resource=" in line and str(guarded.port) in line for line in asked)

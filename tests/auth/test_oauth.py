"""A hub, a server that wants tokens and a real authorization server: how tokens are had, and where they never go."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.auth.oauth_lab import Guarded, Issuer
from tests.faults.fault_lab import until
from toolway import AccessDenied, Hub, ServerUnavailable, ToolwayError
from toolway.auth.token_store import Credential, MemoryTokenStore, TokenKey

pytestmark = pytest.mark.anyio

HTTP = "toolway.upstream.transports.streamable_http"


def _hub(guarded: Guarded, login: Any = None, auth: dict[str, Any] | None = None, **options: Any) -> Hub:
    entry = {"url": guarded.url, **({"auth": {"type": "oauth", **auth}} if auth is not None else {})}
    return Hub({"guarded": entry}, login_callback=login, catalog_storage=None, **options)


async def _fails(hub: Hub, code: str) -> ToolwayError:
    async with hub:
        with pytest.raises((AccessDenied, ServerUnavailable)) as caught:
            await hub.call_tool("guarded.echo")
    assert caught.value.code == code, str(caught.value)
    assert caught.value.executed == "no"
    return caught.value


async def test_server_login_happens_automatically() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        async with _hub(guarded, issuer.login) as hub:
            assert not (await hub.call_tool("guarded.echo")).is_error
            assert not (await hub.call_tool("guarded.echo")).is_error
        assert issuer.made == {"registration": 1, "login": 1, "authorization_code": 1}
        asked = "\n".join(issuer.seen)
        assert "code_challenge_method=S256" in asked and "resource=" in asked


async def test_missing_login_callback_hints_at_login_command() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        plain = await _fails(_hub(guarded), "E-AUTH-LOGIN")
        configured = await _fails(_hub(guarded, auth={}), "E-AUTH-LOGIN")
        assert plain.hint == configured.hint == "toolway login guarded"
        assert not issuer.seen


async def test_static_token_is_used_as_is() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        token = issuer.tokens("base", "x")["access_token"]
        entry = {"url": guarded.url, "headers": {"Authorization": f"Bearer {token}"}}
        async with Hub({"guarded": entry}, login_callback=issuer.login, catalog_storage=None) as hub:
            await hub.call_tool("guarded.echo")
        assert not issuer.seen


async def test_configured_client_is_not_registered_again() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        issuer.clients["mine"] = "its secret/&"
        auth = {"clientId": "mine", "clientSecret": "its secret/&", "issuer": issuer.issuer, "scopes": "one two"}
        async with _hub(guarded, issuer.login, auth) as hub:
            await hub.call_tool("guarded.echo")
        assert issuer.made["registration"] == 0
        assert list(issuer.valid.values()) == ["one two"]


async def test_client_credentials_need_no_user() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        issuer.clients["mine"] = "secret"
        auth = {"grant": "client_credentials", "clientId": "mine", "clientSecret": "secret", "issuer": issuer.issuer}
        async with _hub(guarded, auth=auth) as hub:
            await hub.call_tool("guarded.echo")
            issuer.expire()
            await hub.call_tool("guarded.echo")
        assert issuer.made == {"client_credentials": 2}


async def test_private_key_client_signs_its_assertion() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        auth = {"grant": "client_credentials", "clientId": "mine", "privateKey": pem, "algorithm": "ES256"}
        await _fails(_hub(guarded, auth={**auth, "issuer": issuer.issuer}), "E-AUTH-LOGIN")  # it knows no keys
        form = next(line for line in issuer.seen if "client_assertion=" in line)
        claims = form.partition("client_assertion=")[2].partition("&")[0].split(".")[1]
        told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        assert (told["iss"], told["sub"], told["aud"]) == ("mine", "mine", issuer.issuer)


async def test_client_secret_goes_only_to_its_issuer() -> None:
    for grant, login in (("authorization_code", True), ("client_credentials", False)):
        async with Issuer() as issuer, Issuer() as other, Guarded(issuer) as guarded:
            guarded.trusts = other.issuer
            auth = {"clientId": "mine", "clientSecret": "canary", "issuer": issuer.issuer, "grant": grant}
            await _fails(_hub(guarded, issuer.login if login else None, auth), "E-AUTH-ISSUER")
            assert "canary" not in "\n".join([*issuer.seen, *other.seen])
            assert not other.made and not issuer.made


@pytest.mark.attack("held-46")
async def test_issuer_with_other_name_is_rejected() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        issuer.metadata = {"issuer": "https://other.example"}
        await _fails(_hub(guarded, issuer.login), "E-AUTH-FLOW")
        assert not issuer.made


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"code_challenge_methods_supported": ["plain"]}, "E-AUTH-PKCE"),
        ({"code_challenge_methods_supported": None}, "E-AUTH-PKCE"),
        ({"registration_endpoint": None}, "E-AUTH-CLIENT"),
        ({"registration_endpoint": "http://issuer.example/register"}, "E-AUTH-URL"),
        ({"authorization_endpoint": "http://issuer.example/authorize"}, "E-AUTH-URL"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "E-AUTH-FLOW"),
        ({"authorization_endpoint": "file:///bin/sh"}, "E-AUTH-FLOW"),
        ({"authorization_endpoint": "https://u:p@issuer.example/"}, "E-AUTH-URL"),
        ({"token_endpoint": "http://issuer.example/token"}, "E-AUTH-URL"),
        ({"authorization_response_iss_parameter_supported": True}, "E-AUTH-FLOW"),
    ],
)
@pytest.mark.attack("held-47", "held-48", "held-49")
async def test_unsafe_issuer_metadata_gets_no_code(metadata: dict[str, Any], code: str) -> None:
    sent_to: list[str] = []

    async def login(server: str, url: str) -> str:
        sent_to.append(url)
        return await issuer.login(server, url)

    async with Issuer() as issuer, Guarded(issuer) as guarded:
        issuer.metadata = metadata
        await _fails(_hub(guarded, login), code)
        assert issuer.made["authorization_code"] == 0
        assert all(url.startswith(issuer.issuer) for url in sent_to)
        assert not sent_to or "token_endpoint" in metadata or code == "E-AUTH-FLOW"


@pytest.mark.parametrize(
    "change",
    [
        {"state": "another"},
        {"state": None},
        {"iss": "https://other.example"},
        {"code": None},
        {"error": "access_denied"},
    ],
)
@pytest.mark.attack("held-47", "held-51")
async def test_login_with_altered_redirect_gets_no_token(change: dict[str, str | None]) -> None:
    async def login(server: str, url: str) -> str:
        ended = httpx2.URL(await issuer.login(server, url))
        kept = {name: value for name, value in {**dict(ended.params), **change}.items() if value is not None}
        return str(ended.copy_with(params=kept))

    async with Issuer() as issuer, Guarded(issuer) as guarded:
        error = await _fails(_hub(guarded, login), "E-AUTH-SERVER" if "error" in change else "E-AUTH-FLOW")
        assert "access-" not in str(error)
        assert issuer.made["authorization_code"] == 0
        assert issuer.made["login"] == 1


async def test_declined_login_is_not_repeated_by_every_start() -> None:
    asked = 0

    async def login(server: str, url: str) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("not now")
        return await issuer.login(server, url)

    async with Issuer() as issuer, Guarded(issuer) as guarded, _hub(guarded, login) as hub:
        with pytest.raises((AccessDenied, ServerUnavailable)):
            await hub.call_tool("guarded.echo")
        await asyncio.sleep(1)  # starts are tried again in the meantime
        assert asked == 1
        hub.restart_server("guarded")
        await until(lambda: hub.status()["guarded"].state == "ready", 30)
        await hub.call_tool("guarded.echo")
        assert asked == 2


async def test_slow_login_does_not_use_up_call_timeout() -> None:
    async def login(server: str, url: str) -> str:
        await asyncio.sleep(6)
        return await issuer.login(server, url)

    async with Issuer() as issuer, Guarded(issuer) as guarded:
        async with _hub(guarded, issuer.login) as hub:
            await hub.call_tool("guarded.echo")
            issuer.expire()
            issuer.refresh.clear()
            hub._core._auth._token_managers[next(iter(hub._core._auth._token_managers))]._login_callback = login
            calls = (hub.call_tool("guarded.echo", timeout=5) for _ in range(20))
            assert all(not reply.is_error for reply in await asyncio.gather(*calls))
        assert issuer.made["login"] == 2


async def test_cancelled_call_does_not_end_login_of_others() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def login(server: str, url: str) -> str:
        begun.set()
        await go.wait()
        return await issuer.login(server, url)

    async with Issuer() as issuer, Guarded(issuer) as guarded, _hub(guarded, login) as hub:
        first = asyncio.create_task(hub.call_tool("guarded.echo"))
        second = asyncio.create_task(hub.call_tool("guarded.echo"))
        await begun.wait()
        first.cancel()
        go.set()
        assert not (await second).is_error
        assert issuer.made["login"] == 1


@pytest.mark.attack("held-53")
async def test_stored_tokens_are_reused_only_for_their_url() -> None:
    store = MemoryTokenStore()
    async with Issuer() as issuer, Guarded(issuer) as guarded, Guarded(issuer) as moved:
        async with _hub(guarded, issuer.login, token_store=store) as hub:
            await hub.call_tool("guarded.echo")
        async with _hub(guarded, auth={}, token_store=store) as hub:
            await hub.call_tool("guarded.echo")
            issuer.expire()
            await hub.call_tool("guarded.echo")  # renewed, without anybody
        assert issuer.made["login"] == 1
        await _fails(_hub(moved, auth={}, token_store=store), "E-AUTH-LOGIN")
        assert not any(moved.sent)
        held = await store.get(TokenKey(issuer.issuer, f"guarded {guarded.url}", ""))
        assert isinstance(held, Credential) and held.access in issuer.valid


async def test_tokens_of_two_servers_are_never_mixed() -> None:
    async with Issuer() as one, Issuer() as two, Guarded(one) as first, Guarded(two) as second:

        async def login(server: str, url: str) -> str:
            return await (one if server == "first" else two).login(server, url)

        async with Hub({"first": first.url, "second": second.url}, login_callback=login, catalog_storage=None) as hub:
            names = ["first.echo", "second.echo"] * 20
            await asyncio.gather(*(hub.call_tool(name) for name in names))
        assert {value.removeprefix("Bearer ") for value in first.sent} == set(one.valid)
        assert {value.removeprefix("Bearer ") for value in second.sent} == set(two.valid)


async def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Issuer() as issuer, Guarded(issuer) as guarded, _hub(guarded, issuer.login) as hub:
        await hub.call_tool("guarded.echo")
        issuer.expire()
        issuer.fault = "status=400"
        errors = []
        for _ in range(2):
            with pytest.raises(AccessDenied) as caught:
                await hub.call_tool("guarded.echo")
            errors.append(str(caught.value))
        issuer.fault = ""
        text = "\n".join([caplog.text, *errors, repr(hub.status()), repr(hub._core._auth._token_managers)])
        secrets = [*issuer.valid, *issuer.refresh, *issuer.used, *issuer.clients.values(), *guarded.sent]
        assert secrets and not [secret for secret in secrets if secret and secret.removeprefix("Bearer ") in text]


def test_hub_without_oauth_does_not_import_it() -> None:
    script = "import sys, toolway.hub{}; print(*sys.modules)"
    for more, unwanted in (("", {"mcp.client", "httpx2", "jwt"}), (f", {HTTP}", {"mcp.client.auth", "jwt"})):
        command = [sys.executable, "-c", script.format(more)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not unwanted & set(done.stdout.split())

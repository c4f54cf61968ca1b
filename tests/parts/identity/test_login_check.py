"""What `toolway doctor` says about the identity provider of a gateway, and about a token of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.parts.identity.issuer import AUDIENCE, Issuer, encode_json, public_jwk, rsa_key
from tests.parts.identity.test_process import published
from toolway.doctor.report import Check, SubjectReport
from toolway.network import NetworkPolicy
from toolway.parts.identity.doctor_check import check_login
from toolway.parts.identity.settings import LoginSettings

pytestmark = pytest.mark.anyio


async def check(issuer: Issuer, token: str = "", **settings: Any) -> dict[str, Check]:
    login = replace(LoginSettings(issuer=issuer.url, audience=AUDIENCE), **settings)
    report: SubjectReport = await check_login(login, NetworkPolicy(), token)
    return {each.name: each for each in report.checks}


async def test_working_provider_and_valid_token_pass() -> None:
    issuer = Issuer()
    async with published(issuer):
        issuer.date = formatdate(usegmt=True)
        found = await check(issuer, issuer.token(preferred_username="alice@acme"))
        assert {name: each.state for name, each in found.items()} == {"provider": "ok", "clock": "ok", "token": "ok"}
        assert "1 usable key" in found["provider"].message and "alice@acme, eng" in found["token"].message


async def test_unusable_provider_reports_cause_and_fix() -> None:
    issuer = Issuer()
    async with published(issuer) as url:
        issuer.metadata["issuer"] = f"{url}/"
        other = (await check(issuer))["provider"]
        assert other.state == "fail" and other.copy == f'"issuer": "{url}/"' and other.code == "E-LOGIN-PROVIDER"
        issuer.metadata["issuer"] = url
        for jwks in (b'{"keys": []}', b"{}", json.dumps({"keys": [public_jwk(rsa_key(1024), "weak")]}).encode()):
            issuer.jwks = jwks
            empty = (await check(issuer))["provider"]
            assert empty.state == "fail" and "no keys" in empty.message and "RSA with 2048 bits" in empty.hint
        issuer.jwks = None
        issuer.date = "Tue, 17 Nov 2020 12:00:00 GMT"
        clock = (await check(issuer))["clock"]
        assert clock.state == "fail" and clock.code == "E-LOGIN-CLOCK" and "clock" in clock.hint
    gone = (await check(issuer))["provider"]
    assert gone.state == "fail" and "cannot fetch" in gone.message
    assert gone.copy == f"curl -sS {issuer.url}/.well-known/openid-configuration" and issuer.url in gone.detail


async def test_rejected_token_reports_cause_and_fix() -> None:
    issuer = Issuer()
    async with published(issuer):
        now = int(issuer.now)
        cases = {
            issuer.token(aud="api://toolway"): ("another audience", "api://toolway", '"audience": "api://toolway"'),
            issuer.token(aud=["a", "b"]): ("another audience", "['a', 'b']", ""),
            issuer.token(iss="https://a.example"): ("another issuer", "iss of the", '"issuer": "https://a.example"'),
            issuer.token(exp=now - 600, iat=now - 900): ("expired", "exp 20", "date -u"),
            issuer.token(iat=now + 600): ("not valid yet", "iat 20", "date -u"),
            issuer.token({"typ": "JWT"}, scope=None, client_id=None, nonce="n"): ("not an access token", "typ jwt", ""),
            Issuer(issuer.url).token({"kid": "k9"}): ("no such key", "kid k9", ""),
            "opaque": ("not a JWT", "", ""),
            "a.b.c": ("cannot be decoded", "", ""),
        }
        for token, (message, detail, copy) in cases.items():
            found = (await check(issuer, token))["token"]
            assert found.state == "fail" and message in found.message and detail in found.detail, found
            assert found.copy == copy and found.hint and found.code == "E-LOGIN-TOKEN"
            signature = token.rpartition(".")[2]
            assert len(signature) < 20 or signature not in str(found.to_json())
        lacks = (await check(issuer, issuer.token(), scopes=("tools:write",)))["token"]
        assert lacks.state == "fail" and "tools:write" in lacks.message and "tools:read" in lacks.detail


async def test_hostile_claim_cannot_break_the_copied_line() -> None:
    issuer = Issuer()
    async with published(issuer):
        hostile = (await check(issuer, issuer.token(aud='x", "admins": ["\u202e')))["token"]
        assert hostile.copy == '"audience": "x, admins: ["'
        assert encode_json({}) and "\u202e" not in hostile.detail


async def test_doctor_checks_provider_and_token(tmp_path: Path) -> None:
    import asyncio

    issuer = Issuer()
    async with published(issuer) as url:
        block = {"gateway": {"login": {"issuer": url, "audience": AUDIENCE}}}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {}, "toolway": block}))
        (tmp_path / "token").write_text(issuer.token(aud="https://other.example/mcp") + "\n")
        words = ["-m", "toolway.cli", "doctor", "--json", "-c", str(tmp_path / "mcp.json")]
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *words, "--access-token", str(tmp_path / "token")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    report = json.loads(done.stdout)
    [login] = [each for each in report["subjects"] if each["name"] == "login"]
    assert [each["state"] for each in login["checks"]] == ["ok", "ok", "fail"] or login["checks"][-1]["state"] == "fail"
    assert login["checks"][-1]["copy"] == '"audience": "https://other.example/mcp"' and done.returncode != 0

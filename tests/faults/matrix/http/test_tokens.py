"""Tokens that have expired, an issuer that gives no new one, and a scope that is never enough."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.auth.oauth_lab import Guarded, Issuer
from tests.auth.separate_process import apart
from tests.faults.fault_lab import ERAS, Served, lab
from tests.timing import QUIET
from toolway import AccessDenied
from toolway.auth import token_manager
from toolway.hub.core_options import LoginOptions

pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.dear]

MANY = 100 if QUIET else 20  # calls at once
TROUBLES = {
    **dict.fromkeys(["down", "status=503", "slow"], "E-AUTH-SERVER"),
    **dict.fromkeys(["wider", "issuer", "junk", "huge"], "E-AUTH-ANSWER"),
}


@ERAS
@pytest.mark.fault("B10")
@pytest.mark.alone
async def test_many_calls_with_an_expired_token_cause_one_refresh(era: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with (
        apart(era=era, effects=effects) as pair,
        lab({"bad": {"url": pair.url}}, logins=LoginOptions(pair.login), effects=effects) as bench,
    ):
        (await bench.call("bad.counter")).expect(None)
        for expected in (1, 2):
            await pair.command("expire")
            calls = [bench.start("bad.counter") for _ in range(MANY)]
            for outcome in await asyncio.gather(*calls):
                outcome.expect(None)
                assert bench.happened(outcome) == 1
            assert (await pair.facts()).made["refresh_token"] == expected
        assert (pair.logins, (await pair.facts()).made["registration"]) == (1, 1)


@ERAS
@pytest.mark.fault("B10")
@pytest.mark.alone
async def test_token_expiring_by_clock_is_refreshed_once_before_calls(era: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with apart(era=era, effects=effects) as pair:
        await pair.command("lifetime 2")
        async with lab({"bad": {"url": pair.url}}, logins=LoginOptions(pair.login), effects=effects) as bench:
            (await bench.call("bad.counter")).expect(None)
            await asyncio.sleep(2.1)
            before = await pair.command("lifetime 3600")
            calls = [bench.start("bad.counter") for _ in range(MANY)]
            for outcome in await asyncio.gather(*calls):
                outcome.expect(None)
            after = await pair.facts()
            assert after.made["refresh_token"] == before.made["refresh_token"] + 1
            assert after.sent == before.sent + MANY


@ERAS
@pytest.mark.fault("B10")
async def test_second_401_is_final_and_nothing_is_executed(era: str) -> None:
    async with Issuer() as issuer:
        guarded = Guarded(issuer, era=era)
        async with lab({"bad": guarded}, logins=LoginOptions(issuer.login)) as bench:
            (await bench.call("bad.echo")).expect(None)
            guarded.refuses = True
            sent = len(guarded.sent)
            first = (await bench.call("bad.counter")).expect(AccessDenied, "no")
            assert (len(guarded.sent) - sent, issuer.made["refresh_token"], bench.happened(first)) == (2, 1, 0)
            second = (await bench.call("bad.counter")).expect(AccessDenied, "no")
            assert (len(guarded.sent) - sent, issuer.made["refresh_token"], bench.happened(second)) == (3, 1, 0)
            assert issuer.made["login"] == 1


@ERAS
@pytest.mark.fault("B11")
async def test_failing_issuer_fails_the_call_and_keeps_the_login(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_manager, "REFRESH_TIMEOUT_S", 1.0)
    monkeypatch.setattr(token_manager, "FAILURE_COOLDOWN_S", 0.1)
    async with Issuer() as issuer:
        guarded = Guarded(issuer, era=era)
        issuer.lifetime = 1
        async with lab({"bad": guarded}, logins=LoginOptions(issuer.login)) as bench:
            issuer.lifetime = 0.3
            for fault, code in TROUBLES.items():
                (await bench.call("bad.counter")).expect(None)
                if fault == "down":
                    await issuer.stop()
                issuer.fault = fault
                await asyncio.sleep(1.1 if fault == "down" else 0.4)  # the token ends
                sent = len(guarded.sent)
                outcome = (await bench.call("bad.counter")).expect(AccessDenied, "no")
                assert outcome.error is not None
                assert (outcome.error.code, outcome.error.attempts) == (code, 1), fault
                assert (len(guarded.sent) - sent, bench.happened(outcome)) == (0, 0), fault
                if fault == "down":
                    await issuer.start()
                issuer.fault = ""
                await asyncio.sleep(0.15)
            (await bench.call("bad.counter")).expect(None)
            assert issuer.made["login"] == 1  # the refresh token that we had was kept each time, and works


@ERAS
@pytest.mark.fault("B11")
async def test_new_issuer_receives_no_secret_of_the_first_issuer(era: str) -> None:
    async with Issuer() as issuer, Issuer() as other:
        guarded = Guarded(issuer, era=era)
        async with lab({"bad": guarded}, logins=LoginOptions(issuer.login)) as bench:
            (await bench.call("bad.counter")).expect(None)
            guarded.trusts = other.issuer
            issuer.expire()
            kept, sent = list(issuer.refresh), len(guarded.sent)
            outcome = (await bench.call("bad.counter")).expect(AccessDenied, "no")
            assert (len(guarded.sent) - sent, bench.happened(outcome)) == (2, 0)
            told = "\n".join(other.seen)
            assert other.made["registration"] == 1
            assert not [secret for secret in (*kept, *issuer.clients, *issuer.clients.values()) if secret in told]
            assert list(issuer.refresh) == kept


@ERAS
@pytest.mark.fault("B12")
async def test_insufficient_oauth_scope_is_requested_twice_at_most(era: str) -> None:
    async with Issuer() as issuer:
        guarded = Guarded(issuer, era=era)
        issuer.scope = "base"
        guarded.needs = {"counter": "more"}
        async with lab({"bad": guarded}, logins=LoginOptions(issuer.login)) as bench:
            first = (await bench.call("bad.counter")).expect(AccessDenied, "no")
            assert (len(guarded.sent), issuer.made["login"], bench.happened(first)) == (3, 3, 0)
            (await bench.call("bad.counter")).expect(AccessDenied, "no")
            assert (len(guarded.sent), issuer.made["login"]) == (4, 3)
            (await bench.call("bad.echo")).expect(None)


@ERAS
@pytest.mark.fault("B12")
async def test_missing_oauth_scope_is_added_and_call_made_once(era: str) -> None:
    async with Issuer() as issuer:
        guarded = Guarded(issuer, era=era)
        guarded.needs = {"counter": "more"}
        async with lab({"bad": Served(guarded)}, logins=LoginOptions(issuer.login)) as bench:
            outcome = (await bench.call("bad.counter")).expect(None)
            assert (issuer.made["login"], bench.happened(outcome)) == (2, 1)
            assert issuer.valid[guarded.sent[-1].removeprefix("Bearer ")] == "base more"

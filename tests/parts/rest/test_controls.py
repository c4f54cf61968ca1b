"""Every control of a call at `/mcp` is one of a call at `/api/tools/NAME` too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.audit.log_reader import calls
from tests.gateway.bridge_lab import lab
from tests.gateway.edge_lab import edge
from tests.gateway.full_server import FullHttp
from tests.gateway.program import program
from tests.gateway.test_redaction import SECRET
from tests.gateway.test_redaction import _gateway as leaky_gateway
from tests.parts.approvals.lab import asking
from tests.parts.budgets.test_call_budgets import budgets_of
from tests.parts.flows.test_call_flows import GITHUB, GITHUB_LABELS
from tests.parts.flows.test_call_flows import _story as story_of
from tests.parts.policy.test_gateway import ruled
from tests.parts.rest.lab import facts, get_document, post
from tests.parts.search.test_search_tools import _AddIsHeld
from toolway.gateway.rate_limit import Rate
from toolway.parts.budgets.settings import parse_budgets
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
Check = Callable[[Path, str], Awaitable[None]]
ECHO: Final = {"text": "x"}
#: The endpoint for all servers, and one of a toolset.
TOOLSETS: Final = ("", "both")
CONTROLS: Final = (
    *("access", "deny", "policy", "approval", "budget", "flows", "pins"),
    *("audit", "redaction", "arguments", "rate", "idempotency"),
)
_CHECKS: dict[str, Check] = {}


def checks(control: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        _CHECKS[control] = check
        return check

    return add


def test_every_control_is_checked() -> None:
    assert set(_CHECKS) == set(CONTROLS)


@pytest.mark.parametrize("toolset", TOOLSETS, ids=("all tools", "a toolset"))
@pytest.mark.parametrize("control", CONTROLS)
async def test_control_applies_to_calls_over_http(control: str, toolset: str, tmp_path: Path) -> None:
    await _CHECKS[control](tmp_path, toolset)


def _base(found: Any) -> str:
    return f"http://127.0.0.1:{found.port}"


@checks("access")
async def _access(folder: Path, toolset: str) -> None:
    async with edge(folder) as found:
        token = found.key("server/a")
        answer = await post(_base(found), "b__echo", ECHO, toolset=toolset, token=token)
        assert facts(answer) == (404, "no") and found.calls("b") == 0
        assert (await post(_base(found), "b__echo", ECHO, toolset=toolset, token="tw_other")).status_code == 401
        assert (await post(_base(found), "b__echo", ECHO, toolset=toolset, token=None)).status_code == 401
        shown = await get_document(_base(found), "server/a", token)
        assert "/tools/echo" in shown["paths"] and "b__" not in str(shown["paths"])
        own = await post(_base(found), "echo", ECHO, toolset="server/a", token=token)
        assert own.status_code == 200 and (found.calls("a"), found.calls("b")) == (1, 0)


@checks("deny")
async def _deny(folder: Path, toolset: str) -> None:
    async with FullHttp("modern") as fake:
        entry = {"url": fake.url, "tools": {"deny": ["echo"]}}
        async with lab({"full": entry}) as found:
            for name, where in (("full__echo", ""), ("echo", "server/full")):
                answer = await post(found.base, name, ECHO, toolset=where)
                assert facts(answer) == (403, "no") and "denied" in answer.json()["message"]
            assert name not in str((await get_document(found.base))["paths"]) and fake.stats.calls.get("echo", 0) == 0


@checks("policy")
async def _policy(folder: Path, toolset: str) -> None:
    async with ruled(folder) as (found, issuer, holder):
        bob = issuer.token(sub="bob", groups=[])
        for name, arguments in (("a__echo", ECHO), ("b__echo", {"text": "secret plan"})):
            answer = await post(_base(found), name, arguments, toolset=toolset, token=bob)
            assert facts(answer) == (404, "no") and "Unknown tool" in answer.json()["message"]
        assert len(holder.denials.found) == 2 and found.calls("a") == found.calls("b") == 0
        assert [*(await get_document(_base(found), toolset, bob))["paths"]] == ["/tools/b__echo"]
        assert (await post(_base(found), "b__echo", ECHO, toolset=toolset, token=bob)).status_code == 200


@checks("approval")
async def _approval(folder: Path, toolset: str) -> None:
    async with asking(folder, {"bank.echo": {"by": "admin"}}) as found:
        name, where = ("echo", "server/bank") if toolset else ("bank__echo", "")
        answer = await post(found.base, name, ECHO, toolset=where)
        [waiting] = await found.gate.list_requests()
        assert facts(answer) == (403, "no") and answer.json()["approvalId"] == waiting.id
        assert found.executed() == 0
        await found.gate.decide(waiting.id, "approved", "", "")
        other = await post(found.base, name, {"text": "y"}, toolset=where)
        assert facts(other) == (403, "no")
        assert (await post(found.base, name, ECHO, toolset=where)).status_code == 200 and found.executed() == 1


@checks("budget")
async def _budget(folder: Path, toolset: str) -> None:
    async with edge(folder) as found:
        budgets_of(found).set_rules(parse_budgets({"both": {"a.*": "1/day"}}), fails_open=False)
        token = found.key("both")
        assert (await post(_base(found), "a__echo", ECHO, toolset="both", token=token)).status_code == 200
        answer = await post(_base(found), "a__echo", ECHO, toolset="both", token=token)
        assert facts(answer) == (429, "no") and int(answer.headers["retry-after"]) >= 1
        assert found.calls("a") == 1


@checks("flows")
async def _flows(folder: Path, toolset: str) -> None:
    async with story_of(folder, "deny", GITHUB, GITHUB_LABELS) as story:
        prefix, where = ("", "server/s") if toolset else ("s__", "")
        for name in ("list_issues", "get_file_contents"):
            assert (await post(_base(story), prefix + name, toolset=where)).status_code == 200
        answer = await post(_base(story), f"{prefix}create_pull_request", {"body": "x"}, toolset=where)
        assert facts(answer) == (403, "no") and answer.json()["code"] == "E-FLOW" and story.sent == 0


@checks("pins")
async def _pins(folder: Path, toolset: str) -> None:
    async with edge(folder) as found:
        found.hub.lists.catalog.pins = _AddIsHeld()
        found.hub.lists.catalog.review_again("a")
        answer = await post(_base(found), "a__add", {"a": 1, "b": 2}, toolset=toolset)
        assert facts(answer) == (403, "no") and found.calls("a") == 0
        assert "/tools/a__add" not in (await get_document(_base(found), toolset))["paths"]


@checks("audit")
async def _audit(folder: Path, toolset: str) -> None:
    toolsets: Mapping[str, Any] = {"both": {"tools": ["*"]}}
    async with program(folder / "g", {"s": fake_server()}, audit={"arguments": True}, toolsets=toolsets) as run:
        answer = await post(
            f"http://127.0.0.1:{run.port}", "s__echo", ECHO, toolset=toolset, token=run.token, X_Request_ID="req-7"
        )
        assert answer.status_code == 200 and answer.headers["x-request-id"] == "req-7"
        assert await run.stop() == 0
    records = calls(folder / "g" / "state" / "audit.sqlite")
    assert [(each["server"], each["tool"], each["given"]) for each in records] == [("s", "echo", ECHO)]


@checks("redaction")
async def _redaction(folder: Path, toolset: str) -> None:
    async with leaky_gateway(folder) as found:
        name, where = ("leak", "server/leaky") if toolset else ("leaky__leak", "")
        for how in ("plain", "structured", "long"):
            answer = await post(_base(found), name, {"how": how}, toolset=where)
            assert answer.status_code == 200 and SECRET not in answer.text and "battery" not in answer.text
            assert "***" in answer.text


@checks("arguments")
async def _arguments(folder: Path, toolset: str) -> None:
    async with edge(folder) as found:
        answer = await post(_base(found), "a__echo", {"text": 7}, toolset=toolset)
        assert facts(answer) == (400, "no") and found.calls("a") == 0
        assert "text" in str(answer.json()["violations"][0]) and answer.json()["code"] == "E-ARGUMENTS"


@checks("rate")
async def _rate(folder: Path, toolset: str) -> None:
    async with edge(folder) as found:
        token, _ = found.keyring.create_key_sync("ci", None, False, 0.0, rate=Rate.parse("1/h"))
        assert (await post(_base(found), "a__echo", ECHO, toolset=toolset, token=token)).status_code == 200
        answer = await post(_base(found), "a__echo", ECHO, toolset=toolset, token=token)
        assert facts(answer) == (429, "no") and int(answer.headers["retry-after"]) > 1000
        assert found.calls("a") == 1


@checks("idempotency")
async def _idempotency(folder: Path, toolset: str) -> None:
    async with program(folder / "g", {"s": fake_server()}, toolsets={"both": {"tools": ["*"]}}) as run:
        base, arguments = f"http://127.0.0.1:{run.port}", {"nonce": "n"}
        answers = [
            await post(base, "s__counter", arguments, toolset=toolset, token=run.token, Idempotency_Key="order-1")
            for _ in range(2)
        ]
        assert [each.status_code for each in answers] == [200, 200] and answers[0].json() == answers[1].json()
        other = await post(
            base, "s__counter", {"nonce": "m"}, toolset=toolset, token=run.token, Idempotency_Key="order-1"
        )
        assert facts(other) == (400, "no") and other.json()["code"] == "E-KEY-MISMATCH"
        again = await post(base, "s__counter", arguments, toolset=toolset, token=run.token)
        assert again.json() != answers[0].json(), "without the key it runs again"

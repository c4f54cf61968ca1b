"""Calls about which the gateway asks the user of the client: once, for what was shown, and never "then continue"."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import KEY, Answer, Raw, made
from tests.gateway.full_server import FullHttp
from tests.parts.approvals.lab import ERAS, FORM, Clock, accept, ask, asking, call, refusal, reply
from toolway.gateway.mcp.pending_input import PENDING_TIMEOUT_S
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.sealing import ClientHandles, Sealer
from toolway.parts.approvals.form import (
    MAX_ALL_CHARS,
    MAX_VALUE_CHARS,
    ArgumentReader,
    cut_arguments,
    size_of,
)
from toolway.parts.approvals.records import ShownArgument
from toolway.types import Call, Json

pytestmark = pytest.mark.anyio

CLIENT: Json = {"bank.echo": "client", "bank.ask": "client"}
PAY: Json = {"text": "pay 100"}
DENIED = (-31010, "E-APPROVAL-DENIED")
WAITS = (-31014, "E-APPROVAL")


async def call_and_answer(
    raw: Raw, answer: Json | None, arguments: Json, name: str = "echo"
) -> tuple[Answer, list[Json]]:
    """Call a tool in a legacy session; answer each question on the stream of the call. Return what was asked."""
    if raw.session is None:
        await raw.initialize(capabilities=FORM)
    asked: list[Json] = []

    async def on_message(message: Json) -> None:
        if message.get("method") == "elicitation/create":
            asked.append(message["params"])
            if answer is not None:
                body = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
                await raw.http.post(raw.url, json=body, headers=raw.headers())

    return await raw.request("tools/call", {"name": name, "arguments": arguments}, on_message), asked


async def run_with_answer(raw: Raw, era: str, answer: Json, arguments: Json) -> Answer:
    if era == "modern":
        return await reply(raw, await ask(raw, "echo", arguments), answer, "echo", arguments)
    return (await call_and_answer(raw, answer, arguments))[0]


@pytest.mark.attack("A2-S12")
async def test_approval_covers_only_the_meta_that_was_shown(tmp_path: Path) -> None:
    async with asking(tmp_path, CLIENT) as lab, lab.raw("server/bank") as raw:
        for shown, sent in (({}, {"x/payee": "other"}), ({"x/payee": "one"}, {"x/payee": "other"})):
            asked = (await raw.call("echo", PAY, capabilities=FORM, meta=shown)).result
            question = asked["inputRequests"]["toolway-approval"]["params"]["message"]
            assert ('request._meta.x/payee: "one"' in question) is bool(shown)
            more = {"requestState": asked["requestState"], "inputResponses": {"toolway-approval": accept()}}
            assert refusal(await raw.call("echo", PAY, capabilities=FORM, meta=sent, **more)) == DENIED
        assert lab.executed() == 0


@pytest.mark.parametrize("server_era", ERAS)
async def test_modern_client_is_asked_and_answer_is_used_once(tmp_path: Path, server_era: str) -> None:
    async with asking(tmp_path, CLIENT, era=server_era) as lab, lab.raw("server/bank") as raw:
        asked = await ask(raw, "echo", PAY)
        (question,) = asked["inputRequests"].values()
        assert question["method"] == "elicitation/create"
        message = question["params"]["message"]
        for words in ("[toolway gateway] ", "Server: bank", "Tool: echo", "Effect: read", 'text: "pay 100"'):
            assert words in message
        assert lab.executed() == 0
        assert (await reply(raw, asked, accept(), "echo", PAY)).result["content"][0]["text"] == "pay 100"
        for _ in range(3):
            assert refusal(await reply(raw, asked, accept(), "echo", PAY)) == DENIED
        assert lab.executed() == 1
        assert lab.actions == ["asked", "approved", "used", *["rejected"] * 3]


@pytest.mark.parametrize("server_era", ERAS)
async def test_legacy_client_is_asked_on_its_call_stream(tmp_path: Path, server_era: str) -> None:
    async with asking(tmp_path, CLIENT, era=server_era) as lab, lab.raw("server/bank") as raw:
        answer, asked = await call_and_answer(raw, accept(), PAY)
        assert answer.result["content"][0]["text"] == "pay 100" and len(asked) == 1
        assert asked[0]["message"].startswith("[toolway gateway] Approve this call?")
        await call_and_answer(raw, accept(), PAY)
        assert lab.executed() == 2 and len(asked) == 1, "each call is asked about"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "answer",
    [
        {"action": "decline"},
        {"action": "cancel"},
        accept(approve=False),
        accept(approve="true"),
        accept(other=True),
        {},
    ],
    ids=str,
)
async def test_any_answer_but_yes_denies_the_call(tmp_path: Path, era: str, answer: Json) -> None:
    async with asking(tmp_path, CLIENT) as lab, lab.raw("server/bank") as raw:
        assert refusal(await run_with_answer(raw, era, answer, PAY)) == DENIED
        assert lab.executed() == 0 and lab.actions[-1] == "denied"


@pytest.mark.parametrize("era", ERAS)
async def test_client_without_forms_gets_an_administrator_request(tmp_path: Path, era: str) -> None:
    async with asking(tmp_path, CLIENT) as lab, lab.raw("server/bank") as raw:
        first = await call(raw, era, "echo", PAY)
        assert refusal(first) == WAITS and "toolway approvals approve" in first.error["data"]["fix"]
        assert lab.executed() == 0
        await lab.gate.decide(first.error["data"]["approvalId"], "approved", "")
        assert "result" in (await call(raw, era, "echo", PAY)).last
        assert lab.executed() == 1


async def test_answer_does_not_approve_any_other_call(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    async with (
        asking(tmp_path, CLIENT, keyring=keyring) as lab,
        lab.raw("server/bank", made(keyring, "anna")) as raw,
        lab.raw("server/bank", made(keyring, "ben")) as other,
        lab.raw("", made(keyring, "carl")) as elsewhere,
    ):
        asked = await ask(raw, "echo", PAY)
        swapped = [
            await reply(raw, asked, accept(), "echo", {"text": "pay 900"}),
            await reply(raw, asked, accept(), "ask", PAY),
            await reply(other, asked, accept(), "echo", PAY),
            await reply(elsewhere, asked, accept(), "bank__echo", PAY),
            await reply(raw, {**asked, "requestState": asked["requestState"][:-4] + "AAAA"}, accept(), "echo", PAY),
            await reply(raw, {**asked, "requestState": "toolway"}, accept(), "echo", PAY),
        ]
        assert {each.error["code"] for each in swapped} == {-32602}
        # an answer without a question is a new call
        bare = await raw.call("echo", PAY, capabilities=FORM, inputResponses={"toolway-approval": accept()})
        assert bare.result["resultType"] == "input_required"
        assert lab.executed() == lab.executed("ask") == 0
        assert "result" in (await reply(raw, asked, accept(), "echo", PAY)).last, "the real one still counts"
        assert lab.executed() == 1


async def test_state_from_server_does_not_count_as_approval(tmp_path: Path) -> None:
    async with asking(tmp_path, {}) as lab, lab.raw("server/bank") as raw:
        asked = (await raw.call("ask", {}, capabilities=FORM)).result  # the server asks by itself
        lab.gate.set_rules({**_rules(CLIENT)})
        lab.hub.calls.on_approval_rules_changed()
        answer = await reply(raw, asked, accept(), "ask", {})
        assert answer.result["resultType"] == "input_required", "the rest of a call before the rule is asked about"
        assert "toolway-approval" in answer.result["inputRequests"]


def _rules(block: Json) -> Any:
    from toolway.parts.approvals.rules import parse_approve

    return parse_approve(block)


async def test_repeated_answers_run_the_call_once(tmp_path: Path) -> None:
    async with asking(tmp_path, CLIENT) as lab, lab.raw("server/bank") as raw:
        asked = await ask(raw, "echo", PAY)
        answers = await asyncio.gather(*(reply(raw, asked, accept(), "echo", PAY) for _ in range(20)))
        assert sum("result" in each.last for each in answers) == lab.executed() == 1


async def test_pending_question_survives_restart_and_is_used_once(tmp_path: Path) -> None:
    async with FullHttp("modern") as fake:
        async with asking(tmp_path, CLIENT, fake=fake) as lab, lab.raw("server/bank") as raw:
            asked, second = await ask(raw, "echo", PAY), await ask(raw, "echo", PAY)
        async with asking(tmp_path, CLIENT, fake=fake) as lab, lab.raw("server/bank") as raw:
            assert "result" in (await reply(raw, asked, accept(), "echo", PAY)).last
        async with asking(tmp_path, CLIENT, fake=fake) as lab, lab.raw("server/bank") as raw:
            assert refusal(await reply(raw, asked, accept(), "echo", PAY)) == DENIED
            assert "result" in (await reply(raw, second, accept(), "echo", PAY)).last
            assert lab.executed() == 2


async def test_expired_question_and_changed_tool_are_rejected(tmp_path: Path) -> None:
    clock = Clock()
    async with asking(tmp_path, CLIENT, now=clock) as lab, lab.raw("server/bank") as raw:
        asked = await ask(raw, "echo", PAY)
        binding = Sealer(KEY, lambda: 0.0).open("state", asked["requestState"])[2]
        past = ClientHandles(Sealer(KEY, lambda: clock() - PENDING_TIMEOUT_S - 1))
        opened = Sealer(KEY, lambda: 0.0).open("state", asked["requestState"])
        old = past.seal_state(opened[0], opened[1], tuple(binding), PENDING_TIMEOUT_S)
        assert (await reply(raw, {**asked, "requestState": old}, accept(), "echo", PAY)).error["code"] == -32602
        changed = [{**each.raw, "description": "Other."} for each in lab.hub.lists.catalog.tools("bank")]
        lab.hub.lists.catalog.replace("bank", "tools", changed)
        assert refusal(await reply(raw, asked, accept(), "echo", PAY)) == DENIED
        assert lab.executed() == 0


async def test_input_request_after_approval_runs_once(tmp_path: Path) -> None:
    async with asking(tmp_path, CLIENT) as lab, lab.raw("server/bank") as raw:
        asked = await ask(raw, "ask", {})
        rest = (await reply(raw, asked, accept(), "ask", {})).result
        assert rest["resultType"] == "input_required" and "toolway-approval" not in rest["inputRequests"]
        assert "[bank] " in next(iter(rest["inputRequests"].values()))["params"]["message"]
        done = await reply(raw, rest, accept(name="Anna"), "ask", {})
        assert "Anna" in done.result["content"][0]["text"]
        executed = lab.executed("ask")
        for state in (rest, asked):
            assert refusal(await reply(raw, state, accept(name="Anna"), "ask", {})) == DENIED
        assert lab.executed("ask") == executed, "the rest of an approved call runs once"


async def test_legacy_server_can_ask_during_approved_call(tmp_path: Path) -> None:
    async with asking(tmp_path, CLIENT, era="legacy") as lab, lab.raw("server/bank") as raw:
        rest = (await reply(raw, await ask(raw, "ask", {}), accept(), "ask", {})).result
        assert rest["resultType"] == "input_required" and "toolway-approval" not in rest["inputRequests"]
        assert "Anna" in (await reply(raw, rest, accept(name="Anna"), "ask", {})).result["content"][0]["text"]
        assert lab.executed("ask") == 1


async def test_client_that_disconnects_while_asked_runs_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path, CLIENT) as lab, lab.raw("server/bank") as raw:
        await raw.initialize(capabilities=FORM)
        heard = asyncio.Event()

        async def on_message(message: Json) -> None:
            heard.set()

        body = {"name": "echo", "arguments": PAY}
        waiting = asyncio.create_task(raw.request("tools/call", body, on_message))
        await asyncio.wait_for(heard.wait(), 30)
        await raw.http.delete(raw.url, headers=raw.headers())  # the session ends
        with pytest.raises(Exception):  # noqa: B017 - the stream breaks, or ends with an error
            (await waiting).result  # noqa: B018
        assert lab.executed() == 0


async def test_destructive_hint_adds_question_but_never_skips_rule(tmp_path: Path) -> None:
    rules = {"destructive": "admin", "bank.add": "admin"}
    async with asking(tmp_path, rules) as lab, lab.raw("server/bank") as raw:
        hints: Json = {"echo": {"destructiveHint": True}, "add": {"destructiveHint": False, "readOnlyHint": True}}
        tools = [each.raw | {"annotations": hints.get(each.name, {})} for each in lab.hub.lists.catalog.tools("bank")]
        lab.hub.lists.catalog.replace("bank", "tools", tools)
        assert refusal(await call(raw, "modern", "echo", PAY)) == WAITS
        assert refusal(await call(raw, "modern", "add", {"a": 1, "b": 2})) == WAITS
        assert "result" in (await call(raw, "modern", "declared", {})).last
        assert lab.executed() == lab.executed("add") == 0


def test_every_argument_is_shown_and_cuts_are_marked() -> None:
    def describe(arguments: Json, **params: Any) -> list[ShownArgument]:
        reader = ArgumentReader(
            lambda text: text.replace("s3cret", "***"), lambda text: ["the secret K of server bank"]
        )
        return reader.describe(Call("bank.pay", "tools/call", {"arguments": arguments, "_meta": {}, **params}))

    assert describe({"to": "a\u202eb\n", "key": "s3cret", "with": ["s3cret"], "s3cret": 1}, task={"ttl": 5}) == [
        ShownArgument("to", '"a\\u202eb\\n"'),
        ShownArgument("key", '"***"', "equals the secret K of server bank"),
        ShownArgument("with", '["***"]', "contains the secret K of server bank"),
        ShownArgument("***", "1", "contains the secret K of server bank"),
        ShownArgument("request.task", '{"ttl": 5}'),
    ]
    whole = describe({"text": "x" * 5000})
    assert whole == [ShownArgument("text", f'"{"x" * 5000}"')]
    (shown,) = cut_arguments(whole)
    assert shown.value.startswith('"xxx') and shown.value.endswith(f"… (cut: {5002 - MAX_VALUE_CHARS} more characters)")
    many = cut_arguments(describe({f"n{each}": "y" * 500 for each in range(1000)}))
    assert size_of(many) < MAX_ALL_CHARS + 1000  # ASCII
    assert many[-1] == ShownArgument("…", f"cut: {1000 - len(many) + 1} more arguments are not shown")

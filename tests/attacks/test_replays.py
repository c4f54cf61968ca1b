"""Get an answer without passing a gate, because something answers instead of the server.

An earlier result may answer a call: from an idempotency key, a running call, or the cache. Each of them is tried
against each gate, which closes between the first call and the second.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import TOKEN, Edge, message_of, modern
from tests.parts.approvals.lab import file_store, parts_with
from toolway.config.server_entry import parse_entry
from toolway.gateway.gateway import Gateway
from toolway.gateway.gateway_options import LiveSettings
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.part_set import PartSet
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.core import HubCore
from toolway.middleware.idempotency import IdempotencyStore, MemoryIdempotencyStore
from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore
from toolway.part_api.database import SqliteDatabase
from toolway.parts.approvals.gate import CallApprovals
from toolway.parts.approvals.rules import parse_approve
from toolway.parts.budgets.settings import CallBudget
from toolway.parts.flows import Flows
from toolway.parts.flows.call_flows import CallFlows
from toolway.parts.flows.labels import WINDOW_S
from toolway.parts.flows.store import FlowStore
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.engine import PolicyEngine
from toolway.secrets import server_secrets
from toolway.secrets.server_secrets import secrets_of

Json = dict[str, Any]
pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-F5")]

SALARY = "salary-of-Ann-is-90000"
SERVER = """
import json, os, sys, threading, time

def call(message):
    name, arguments = message["params"]["name"], message["params"]["arguments"]
    with open(sys.argv[1] + "/made", "a") as file:
        file.write(name + "\\n")
    while arguments.get("hold") and not os.path.exists(sys.argv[1] + "/go"):
        time.sleep(0.01)
    answer(message, {"content": [{"type": "text", "text": sys.argv[2]}]})

def answer(message, result):
    result = {"resultType": "complete", **result}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method = message["method"]
    if method == "server/discover":
        info = {"name": "staff", "version": "1"}
        facts = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info}
        answer(message, facts)
    elif method == "tools/list":
        names = ["read", "cached", "shared", "inbox", "send"]
        answer(message, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
    elif method == "tools/call":
        threading.Thread(target=call, args=(message,), daemon=True).start()
    else:
        answer(message, {})
"""
TOOLS: dict[str, Json] = {
    "read": {},
    "cached": {"effect": "read", "cache": 60},
    "shared": {"effect": "read"},
    "inbox": {},
    "send": {},
}
LABELS = {"read": "private", "cached": "private", "shared": "private", "inbox": "untrusted", "send": "sink"}


class ReplayLab(Edge):
    """A gateway before one server, whose gates a test closes."""

    gate: CallApprovals
    flows: CallFlows
    folder: Path
    token: str
    key_id: str
    time: float
    policy: AccessPolicy | None
    toolsets: dict[str, ToolFilter]

    def made(self, tool: str) -> int:
        """How often the server got a call of this tool."""
        path = self.folder / "made"
        return path.read_text().split().count(tool) if path.exists() else 0

    def release(self) -> None:
        """Let the server answer the calls that it holds."""
        (self.folder / "go").touch()

    async def use(self, tool: str, key: str | None = None, arguments: Json | None = None, **params: Any) -> Json:
        """Call a tool; return the message that answers."""
        capabilities = params.pop("capabilities", None)
        body, fields = modern(
            "tools/call", {"name": f"s__{tool}", "arguments": arguments or {}, **params}, capabilities=capabilities
        )
        if key is not None:
            fields["Idempotency-Key"] = key
        answer = await self.ask("POST", "/mcp/staff", body, fields, token=self.token)
        return message_of(answer) if answer.status != 401 else {"error": {"code": 401, "data": {"code": "401"}}}

    def ask_for_approvals(self, **rules: str) -> None:
        self.gate.set_rules(parse_approve({f"s.{tool}": by for tool, by in rules.items()}))
        self.hub.calls.on_approval_rules_changed()

    async def approve(self) -> None:
        """Approve the one call that waits."""
        (waiting,) = [each for each in await self.gate.list_requests() if each.state == "pending"]
        await self.gate.decide(waiting.id, "approved", "")


@asynccontextmanager
async def replay_lab(
    folder: Path, store: str = "memory", flows: Any = None, budgets: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[ReplayLab]:
    program = folder / "staff.py"
    program.write_text(SERVER)
    tools = {name: dict(each) for name, each in TOOLS.items()}
    if flows is not None:
        for name, label in LABELS.items():
            tools[name]["labels"] = [label]
    entry = {"command": sys.executable, "args": [str(program), str(folder), SALARY], "tools": tools, **settings}
    keys: IdempotencyStore
    if store == "memory":
        keys = MemoryIdempotencyStore(asyncio.get_running_loop().time)
    else:
        keys = SqliteIdempotencyStore(folder / "idempotency.sqlite")
    hub = HubCore({"s": parse_entry(entry)}, callbacks=NoHubCallbacks(), idempotency_store=keys)
    keyring = FileApiKeyStore(folder / "keys.json", TOKEN)
    limits = tuple(CallBudget.parse(each) for each in budgets)
    token, key = keyring.create_key_sync("staff", ["staff"], False, 0.0, budgets=limits)
    gate = CallApprovals(file_store(folder, b"k" * 32), hub.mask, hub.emit)
    found: ReplayLab
    labels = CallFlows(
        FlowStore(SqliteDatabase(folder / "flows.sqlite", Flows())),
        lambda: hub.servers.entries,
        hub.emit,
        lambda: found.time,
    )
    gate.add_check(labels)
    labels.set_mode(flows)
    parts = PartSet(hub, keyring, parts=parts_with(gate))
    toolsets = {"staff": ToolFilter(("*",))}
    async with hub:
        gateway = Gateway(hub, b"k" * 32, keyring, settings=LiveSettings(lambda: toolsets), parts=parts)
        gateway.parts.permissions.source = lambda: found.policy
        found = ReplayLab(hub, gateway, keyring, await gateway.listen("127.0.0.1", 0), {})
        found.gate, found.flows, found.folder, found.toolsets = gate, labels, folder, toolsets
        found.token, found.key_id, found.time, found.policy = token, key.id, 1_800_000_000.0, None
        await hub.servers.wait_ready(timeout=60)
        await hub.lists.waits.wait_known(["s"], "tools", 60)
        try:
            yield found
        finally:
            hurry = asyncio.Event()
            hurry.set()
            await gateway.drain(hurry, 0, 0)
            await gate.close()
            await labels.close()
    if isinstance(keys, SqliteIdempotencyStore):
        keys.close()


# -- every answerer against every gate ---------------------------------------------------------------------------------


async def _forbid(at: ReplayLab) -> None:
    at.policy = AccessPolicy(PolicyEngine("permit(principal, action, resource) when {false};"), at.hub.emit)
    at.gateway.on_access_changed()


async def _leave_toolset(at: ReplayLab) -> None:
    at.toolsets["staff"] = ToolFilter(("s.inbox",))
    at.gateway.on_config_changed((), ())


async def _revoke(at: ReplayLab) -> None:
    assert at.keyring.revoke_key_sync(at.key_id)


async def _spend_budget(at: ReplayLab) -> None:
    pass  # the first call has spent it


async def _require_approval(at: ReplayLab) -> None:
    at.ask_for_approvals(read="admin", cached="admin", shared="admin")


async def _read_and_send(at: ReplayLab) -> None:
    """The window of the first call is over; since then the caller has the other two labels."""
    at.time += WINDOW_S + 1
    for tool in ("inbox", "send"):
        assert "result" in await at.use(tool)


async def _learn_secret(at: ReplayLab) -> None:
    secrets_of("s").add(SALARY)


@pytest.fixture(autouse=True)
def _forget_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are kept by name of the server, for the whole process."""
    monkeypatch.setattr(server_secrets, "_by_server", {})


GATES: dict[str, tuple[Callable[[ReplayLab], Awaitable[None]], str]] = {
    "policy": (_forbid, ""),
    "toolset": (_leave_toolset, ""),
    "revoked": (_revoke, "401"),
    "budget": (_spend_budget, "E-BUDGET"),
    "approval": (_require_approval, "E-APPROVAL"),
    "flows": (_read_and_send, "E-FLOW"),
    "redaction": (_learn_secret, ""),
}
#: The tool that is called, the idempotency key, and whether the first call is running when the second one begins.
ANSWERERS: dict[str, tuple[str, str | None, bool]] = {
    "stored": ("read", "key-1", False),
    "running": ("read", "key-1", True),
    "cached": ("cached", None, False),
    "shared": ("shared", None, True),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    ("answerer", "store"), [*((each, "memory") for each in ANSWERERS), ("stored", "sqlite"), ("running", "sqlite")]
)
async def test_answer_is_withheld_after_a_gate_closed(tmp_path: Path, answerer: str, store: str, gate: str) -> None:
    close, code = GATES[gate]
    tool, key, is_running = ANSWERERS[answerer]
    options: Json = {"flows": "deny"} if gate == "flows" else {"budgets": ("1/day",)} if gate == "budget" else {}
    async with replay_lab(tmp_path, store, **options) as at:
        arguments = {"hold": True} if is_running else {}
        first = asyncio.create_task(at.use(tool, key, arguments))
        if is_running:
            while not at.made(tool):
                await asyncio.sleep(0.01)
        else:
            assert SALARY in json.dumps(await first)
        await close(at)
        second = asyncio.create_task(at.use(tool, key, arguments))
        await asyncio.sleep(0.05)
        at.release()
        answer = await second
        with suppress(asyncio.IncompleteReadError):  # a revoked key loses its connections
            await first
        assert SALARY not in json.dumps(answer)
        if gate == "redaction":
            assert "***" in json.dumps(answer["result"])
        else:
            assert code in json.dumps(answer["error"]), answer
        assert at.made(tool) == 1


async def test_second_call_is_answered_while_all_gates_are_open(tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    for answerer, (tool, key, is_running) in ANSWERERS.items():
        folder = tmp_path / answerer
        folder.mkdir()
        async with replay_lab(folder) as at:
            arguments = {"hold": True} if is_running else {}
            first = asyncio.create_task(at.use(tool, key, arguments))
            while not at.made(tool):
                await asyncio.sleep(0.01)
            if not is_running:
                await first
            second = asyncio.create_task(at.use(tool, key, arguments))
            await asyncio.sleep(0.05)
            at.release()
            assert SALARY in json.dumps(await second)
            assert at.made(tool) == 1, answerer
            await first


# -- flows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("plans", ["on", "off"])
async def test_replayed_read_counts_as_reading_private_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, plans: str
) -> None:
    monkeypatch.setenv("TOOLWAY_PLANS", plans)
    async with replay_lab(tmp_path, store, flows="deny") as at:
        assert "result" in await at.use("read", "old")
        at.time += WINDOW_S + 1
        assert "result" in await at.use("inbox")
        assert "result" in await at.use("read", "old")
        assert (await at.use("send"))["error"]["data"]["code"] == "E-FLOW"
        assert (at.made("read"), at.made("send")) == (1, 0)
        (window,) = (await at.flows.load()).values()
        assert set(window) == {"private", "untrusted"}


async def test_rejected_replay_reports_that_the_call_was_executed(tmp_path: Path) -> None:
    async with replay_lab(tmp_path, flows="deny") as at:
        assert "result" in await at.use("send", "sent")
        at.time += WINDOW_S + 1
        for tool in ("read", "inbox"):
            assert "result" in await at.use(tool)
        error = (await at.use("send", "sent"))["error"]
        assert (error["data"]["code"], error["data"]["executed"]) == ("E-FLOW", "yes")
        assert at.made("send") == 1


# -- approvals and budgets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_retry_with_its_key_needs_no_second_approval(tmp_path: Path, store: str) -> None:
    async with replay_lab(tmp_path, store) as at:
        at.ask_for_approvals(read="admin")
        assert (await at.use("read", "one"))["error"]["data"]["code"] == "E-APPROVAL"
        await at.approve()
        for _ in range(3):
            assert SALARY in json.dumps((await at.use("read", "one"))["result"])
        assert at.made("read") == 1
        for key in (None, "two"):  # one approval, one use
            assert (await at.use("read", key))["error"]["data"]["code"] == "E-APPROVAL"
        assert at.made("read") == 1


async def test_retry_with_a_client_approval_needs_no_second_answer(tmp_path: Path) -> None:
    async with replay_lab(tmp_path) as at:
        at.ask_for_approvals(read="client")
        form: Json = {"elicitation": {"form": {}}}
        asked = (await at.use("read", "one", capabilities=form))["result"]
        answers = {each: {"action": "accept", "content": {"approve": True}} for each in asked["inputRequests"]}
        more: Json = {"requestState": asked["requestState"], "inputResponses": answers, "capabilities": form}
        for _ in range(2):  # the same request twice, as a client that lost the first answer sends it
            assert SALARY in json.dumps((await at.use("read", "one", **more))["result"])
        assert at.made("read") == 1
        at.ask_for_approvals(read="admin")  # an administrator decides over the client's user
        error = (await at.use("read", "one", **more))["error"]
        assert (error["data"]["code"], error["data"]["executed"]) == ("E-APPROVAL", "yes")


async def test_approval_rule_newer_than_the_call_holds_its_result(tmp_path: Path) -> None:
    async with replay_lab(tmp_path) as at:
        assert "result" in await at.use("read", "one")
        at.ask_for_approvals(read="admin")
        error = (await at.use("read", "one"))["error"]
        assert (error["data"]["code"], error["data"]["executed"]) == ("E-APPROVAL", "yes")
        await at.approve()
        assert SALARY in json.dumps((await at.use("read", "one"))["result"])
        assert at.made("read") == 1


async def test_retry_of_an_approved_flow_needs_no_second_approval(tmp_path: Path) -> None:
    async with replay_lab(tmp_path, flows="ask") as at:
        for tool in ("read", "inbox"):
            assert "result" in await at.use(tool)
        assert (await at.use("send", "one"))["error"]["data"]["code"] == "E-APPROVAL"
        await at.approve()
        for _ in range(2):
            assert "result" in await at.use("send", "one")
        assert at.made("send") == 1
        assert (await at.use("send", "two"))["error"]["data"]["code"] == "E-APPROVAL"


async def test_replay_counts_against_the_budget(tmp_path: Path) -> None:
    async with replay_lab(tmp_path, budgets=("3/day",)) as at:
        for _ in range(3):
            assert "result" in await at.use("read", "one")
        assert "E-BUDGET" in json.dumps((await at.use("read", "one"))["error"])
        assert at.made("read") == 1

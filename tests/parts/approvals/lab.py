"""A gateway in this process that asks before calls, and a server behind it that counts what it executes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.gateway.bridge_lab import KEY, Answer, Json, Lab, Raw
from tests.gateway.full_server import FullHttp
from toolway.config.server_entry import parse_entry
from toolway.events import ApprovalChanged, Event
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.part_set import PartSet
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.part_api import Part, PartContext, PartRuntime, registry
from toolway.part_api.database import SqliteDatabase
from toolway.parts.approvals import Approvals
from toolway.parts.approvals.gate import CallApprovals
from toolway.parts.approvals.records import ApprovalLinks, ApprovalRequest, ApprovalStore, RequestSealer
from toolway.parts.approvals.rules import parse_approve
from toolway.parts.approvals.runtime import ApprovalsRuntime
from toolway.parts.approvals.store import DatabaseApprovalStore
from toolway.testing import FakeHttp

ERAS = ("modern", "legacy")
FORM: Json = {"elicitation": {"form": {}}}


class _ApprovalsOf(Approvals):
    """The part with a gate that a test has made."""

    def __init__(self, gate: CallApprovals) -> None:
        self._gate = gate

    def open(self, context: PartContext) -> PartRuntime:
        return ApprovalsRuntime.with_gate(context, self._gate)


def parts_with(gate: CallApprovals) -> list[Part]:
    """All built-in parts, one of them with this gate."""
    return [_ApprovalsOf(gate) if each.name == "approvals" else each for each in registry.built_in()]


def file_store(folder: Path, key: bytes = KEY, now: Callable[[], float] = time.time) -> DatabaseApprovalStore:
    """A store in a file, as a gateway without a cluster has it."""
    database = SqliteDatabase(folder / "approvals.sqlite", Approvals())
    return DatabaseApprovalStore(database, RequestSealer(key, now), now)


class Clock:
    """Wall time that a test moves."""

    def __init__(self) -> None:
        self.moved = 0.0

    def __call__(self) -> float:
        return time.time() + self.moved


class Sink:
    """Keeps the events about approvals."""

    wants_attempts = wants_calls = False

    def __init__(self) -> None:
        self.found: list[ApprovalChanged] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, ApprovalChanged):
            self.found.append(event)

    def on_call(self, event: Any) -> None:
        pass


class Asking(Lab):
    """The gateway with its gate, and the server behind it."""

    fake: FakeHttp
    gate: CallApprovals
    sink: Sink
    links: ApprovalLinks

    def executed(self, tool: str = "echo") -> int:
        return self.fake.server.stats.calls.get(tool, 0)

    @property
    def actions(self) -> list[str]:
        return [each.action for each in self.sink.found]

    async def waiting(self) -> list[ApprovalRequest]:
        return [each for each in await self.gate.list_requests() if each.state == "pending"]


@asynccontextmanager
async def asking(
    folder: Path,
    rules: Json,
    *,
    era: str = "modern",
    fake: FakeHttp | None = None,
    keyring: FileApiKeyStore | None = None,
    now: Callable[[], float] = time.time,
    store: ApprovalStore | None = None,
) -> AsyncIterator[Asking]:
    """A gateway with these rules before one full server, called `bank`."""
    if fake is None:
        async with FullHttp(era) as own, asking(folder, rules, fake=own, keyring=keyring, now=now, store=store) as lab:
            yield lab
        return
    hub = HubCore({"bank": parse_entry({"url": fake.url})}, callbacks=NoHubCallbacks())
    store = store or file_store(folder, now=now)
    links = ApprovalLinks(KEY, now)
    gate = CallApprovals(store, hub.mask, hub.emit, now, links)
    gate.set_rules(parse_approve(rules))
    parts = PartSet(hub, keyring, parts=parts_with(gate))
    async with hub:
        gateway = Gateway(hub, KEY, keyring, parts=parts)
        found = Asking(hub, gateway, await gateway.listen("127.0.0.1", 0))
        found.fake, found.gate, found.sink, found.links = fake, gate, Sink(), links
        hub.instrumentation.add_sink(found.sink)
        hurry = asyncio.Event()
        try:
            await hub.servers.wait_ready(timeout=60)
            yield found
        finally:
            hurry.set()
            await gateway.drain(hurry, 0, 0)
            await gate.close()


async def call(raw: Raw, era: str, name: str, arguments: Json, **more: Any) -> Answer:
    """Call a tool as a client of this era that cannot be asked."""
    if era == "modern":
        return await raw.call(name, arguments, capabilities=more.pop("capabilities", {}), **more)
    if raw.session is None:
        await raw.initialize(capabilities={})
    return await raw.request("tools/call", {"name": name, "arguments": arguments, **more})


def refusal(answer: Answer) -> tuple[int, str]:
    """Code of the error, and of its cause. Nothing ran."""
    assert answer.error["data"]["executed"] == "no", answer.error
    return answer.error["code"], answer.error["data"]["code"]


def accept(**content: Any) -> Json:
    return {"action": "accept", "content": content or {"approve": True}}


async def ask(raw: Raw, name: str, arguments: Json) -> Json:
    """Call a tool as a modern client that can be asked; return the question."""
    result = (await raw.call(name, arguments, capabilities=FORM)).result
    assert result["resultType"] == "input_required", result
    return result


async def reply(raw: Raw, asked: Json, answer: Json, name: str, arguments: Json) -> Answer:
    """Repeat the call with the answer to a question."""
    responses = dict.fromkeys(asked["inputRequests"], answer)
    return await raw.call(
        name, arguments, capabilities=FORM, requestState=asked["requestState"], inputResponses=responses
    )

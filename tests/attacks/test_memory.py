"""Memory that a caller can make the gateway hold: bodies, results, suspended calls, logins, session ids.

With TOOLWAY_LONG=1 the attack with idle connections has its full size: 2,000 connections.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.gateway.bridge_lab import full, made
from tests.gateway.edge_lab import HELLO, edge, handshake
from tests.gateway.load_clients import Connection
from tests.gateway.program import Program, program
from tests.http.raw_client import connected, serving, until
from tests.middleware.chain_lab import Clock, End, a_call, a_reply, keyed_stage
from toolway import Hub
from toolway.config.settings import AuditSettings
from toolway.errors import CallError
from toolway.gateway import logins
from toolway.gateway.logins import LoginEndpoint, PendingLogin
from toolway.gateway.mcp.legacy_sessions import MAX_CAPABILITIES_BYTES
from toolway.gateway.mcp.pending_input import PendingCalls
from toolway.gateway.mcp.replay_buffer import ReplayBudget, ReplayBuffers
from toolway.gateway.principals import FileApiKeyStore
from toolway.http.exchange import Exchange, HttpRequest
from toolway.http.limits import STRANGERS, BodyBudget
from toolway.http.server_connection import Rejection
from toolway.middleware.idempotency import IdempotencyStore, MemoryIdempotencyStore
from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio

MB: Final = 1024 * 1024
CONNECTIONS: Final = 2000 if os.environ.get("TOOLWAY_LONG") else 30
BODY: Final = b"x" * (3 * MB)
#: The bound: what the gateway may grow by while these connections are idle, and after they were closed.
MOST_GROWTH: Final = 48 * MB


# -- bodies of requests ------------------------------------------------------------------------------------------------


def resident_bytes(run: Program) -> int:
    status = Path(f"/proc/{run.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.mark.timeout(900)
@pytest.mark.attack("B7")
async def test_idle_connections_hold_no_bodies(tmp_path: Path) -> None:
    async with program(tmp_path / "gateway", {}) as run:
        _, key = await run.request("POST", "/admin/keys", {"name": "caller", "access": []})
        fields = {"authorization": f"Bearer {key['token']}", "content-type": "application/json"}
        before = resident_bytes(run)
        idle: list[Connection] = []

        async def open_some(count: int) -> None:
            for _ in range(count):
                connection = await Connection.to(run.port)
                answer = await connection.request("POST", "/mcp", fields, BODY)
                assert answer.status == 400 and not answer.closes
                idle.append(connection)

        await asyncio.gather(*(open_some(CONNECTIONS // 2) for _ in range(2)))
        assert len(idle) == CONNECTIONS
        assert resident_bytes(run) - before < MOST_GROWTH
        for connection in idle:
            connection.close()
        await run.get("/healthz")
        assert resident_bytes(run) - before < MOST_GROWTH


@contextmanager
def traced() -> Iterator[None]:
    """Count allocations, and let no garbage collection help."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def held_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.attack("B7")
@pytest.mark.parametrize("leaves", ["before the answer", "after the answer"])
async def test_closed_connections_hold_no_bodies(leaves: str) -> None:
    started, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def handle(exchange: Exchange) -> None:
        started.release()
        try:
            if leaves == "before the answer":
                await asyncio.Event().wait()
            exchange.reply(200)
        finally:
            ended.release()

    async with serving(handle) as (_, port):
        with traced():
            before = held_bytes()
            for _ in range(20):
                async with connected(port) as client:
                    await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MB)
                    await client.send(b"x" * MB)
                    await started.acquire()
                    if leaves == "after the answer":
                        await client.answer()
                await ended.acquire()
            await asyncio.sleep(0)
            assert held_bytes() - before < 4 * MB  # of 20


# -- finished calls ----------------------------------------------------------------------------------------------------


@pytest.mark.attack("W6")
async def test_finished_calls_are_freed_with_audit_log_on(tmp_path: Path) -> None:
    audit = AuditSettings(file=str(tmp_path / "audit.sqlite"))
    text = "x" * (MB // 2)
    async with Hub({"s": fake_server()}, audit_log=audit) as hub:
        await hub.call_tool("s.counter", {"nonce": "first"})
        with traced():
            before = held_bytes()
            for number in range(30):
                await hub.call_tool("s.counter", {"nonce": f"{number}{text}"})
            assert held_bytes() - before < 4 * MB  # of 15 in requests, and as much in results


@pytest.mark.attack("W6")
async def test_abandoned_calls_are_freed_with_audit_log_on(tmp_path: Path) -> None:
    audit = AuditSettings(file=str(tmp_path / "audit.sqlite"))
    text = "x" * (MB // 2)
    async with Hub({"s": fake_server("never")}, audit_log=audit) as hub:
        await hub.call_tool("s.echo", {"text": "first"})
        with traced():
            before = held_bytes()
            for number in range(20):
                with pytest.raises(CallError):
                    await hub.call_tool("s.bad", {"nonce": f"{number}{text}"}, timeout=0.1, max_attempts=1)
            gc.collect()  # the tracebacks of the errors refer to each other
            assert held_bytes() - before < 4 * MB  # of 10


# -- results of calls with an idempotency key --------------------------------------------------------------------------


def a_store(kind: str, folder: Path, **limits: Any) -> Any:
    return (
        MemoryIdempotencyStore(Clock(), **limits)
        if kind == "memory"
        else SqliteIdempotencyStore(folder / "k", **limits)
    )


async def keyed(store: IdempotencyStore, end: End, caller: str, key: str) -> Any:
    return await keyed_stage(store)(a_call(caller=caller, idempotency_key=key), end)


STORES = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@STORES
@pytest.mark.attack("W5")
async def test_idempotency_results_are_bounded_per_caller(kind: str, tmp_path: Path) -> None:
    store = a_store(kind, tmp_path, max_bytes=MB)
    large, small = End(a_reply("x" * 200_000)), End(a_reply("paid"))
    await keyed(store, small, "victim", "order")
    for number in range(20):
        await keyed(store, large, "attacker", str(number))
    assert store._usage.total_bytes <= MB
    assert (await keyed(store, small, "victim", "order")).text == "paid"
    assert (await keyed(store, large, "attacker", "19")).replayed
    with pytest.raises(CallError) as caught:  # the first one is not kept, and not executed again
        await keyed(store, large, "attacker", "0")
    assert (caught.value.code, caught.value.executed) == ("E-KEY-RESULT", "yes")
    assert (len(large.calls), len(small.calls)) == (20, 1)


@STORES
@pytest.mark.attack("W5")
async def test_call_with_a_result_too_large_to_keep_runs_once(kind: str, tmp_path: Path) -> None:
    store = a_store(kind, tmp_path, max_bytes=MB)
    end = End(a_reply("x" * (2 * MB)))
    assert len((await keyed(store, end, "caller", "k")).text) == 2 * MB
    for _ in range(3):
        with pytest.raises(CallError, match="ran with this key") as caught:
            await keyed(store, end, "caller", "k")
        assert caught.value.executed == "yes"
    assert len(end.calls) == 1


@STORES
@pytest.mark.attack("W5")
async def test_idempotency_keys_are_bounded_per_caller(kind: str, tmp_path: Path) -> None:
    store = a_store(kind, tmp_path, max_keys=40)
    end = End(a_reply("paid"))
    for number in range(10):
        await keyed(store, end, "attacker", str(number))
    for number in range(3):
        with pytest.raises(CallError, match="too many keys") as caught:
            await keyed(store, end, "attacker", f"more {number}")
        assert (caught.value.code, caught.value.executed) == ("E-KEY-STORE", "no")
    for caller in ("victim", ""):
        assert (await keyed(store, end, caller, "k")).text == "paid"
    assert (await keyed(store, end, "attacker", "0")).replayed


async def test_store_usage_is_counted_after_a_restart(tmp_path: Path) -> None:
    store = a_store("sqlite", tmp_path)
    await keyed(store, End(a_reply("x" * 1000)), "caller", "k")
    used = store._usage.total_bytes
    store.close()
    again = a_store("sqlite", tmp_path, max_keys=4)
    assert again._usage.total_bytes == used > 1000
    with pytest.raises(CallError, match="too many keys"):
        await keyed(again, End(a_reply()), "caller", "other")
    again.close()


# -- calls that wait for input -----------------------------------------------------------------------------------------


@pytest.mark.attack("B7")
async def test_suspended_calls_are_bounded_per_caller(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    parking = PendingCalls(max_bytes=4 * MB)
    async with (
        full("legacy", "http", keyring=keyring, parking=parking) as found,
        found.raw(token=made(keyring, "attacker")) as attacker,
        found.raw(token=made(keyring, "v")) as victim,
    ):
        asked = [await attacker.call("elicit", {"nonce": f"{each}" + "x" * 900_000}) for each in range(4)]
        assert [each.last.get("result", {}).get("resultType") for each in asked[:2]] == ["input_required"] * 2
        assert [each.error["data"]["code"] for each in asked[2:]] == ["E-CROWDED"] * 2
        waiting = await victim.call("elicit", {"nonce": "v" + "x" * 900_000})
        assert waiting.result["resultType"] == "input_required"


@pytest.mark.attack("B7")
async def test_unfetched_results_are_bounded_and_shared_fairly() -> None:
    budget = ReplayBudget(4 * MB)
    victim = ReplayBuffers("", "victim", budget)
    kept = victim.create()
    kept.append(b"x" * 100_000, last=True)
    victim.release(kept, delivered=False)
    sessions = [ReplayBuffers("", "attacker", budget) for _ in range(20)]
    buffers = [(session, session.create()) for session in sessions for _ in range(5)]
    for session, buffer in buffers:
        buffer.append(b"x" * 900_000, last=True)
        session.release(buffer, delivered=False)
    assert len(budget) <= 4 * MB
    assert victim.find(f"{kept.name}-1") is not None
    assert sessions[-1].find(f"{buffers[-1][1].name}-1") is not None  # the newest


@pytest.mark.attack("A2-F4")
async def test_pipelined_body_without_token_is_not_read() -> None:
    may_end = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await may_end.wait()
        exchange.reply(200, b"first")

    def authenticate(request: HttpRequest) -> str | Rejection:
        return "me" if "authorization" in request.headers else (401, b"who?", ())

    async with serving(handle, greet=authenticate) as (server, port), connected(port) as client:
        stranger = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (3 * MB)
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + stranger)
        await until(lambda: server.active_count == 1)
        await client.send(b"x" * (3 * MB))
        assert len(server.body_budget) == 0
        may_end.set()
        assert (await client.answer()).body == b"first"  # the denied request behind it costs it nothing
        assert (await client.answer()).status == 401


@pytest.mark.attack("A2-F4")
async def test_pipelined_bodies_count_for_their_own_caller() -> None:
    """Each request counts against its own principal's share, even if another one is handled before it."""
    may_end = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await may_end.wait()
        exchange.reply(200)

    def post(principal: str) -> bytes:
        return f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {principal}\r\nContent-Length: {MB}\r\n\r\n".encode()

    async with serving(handle, greet=lambda request: request.headers["authorization"]) as (server, port):
        async with connected(port) as client:
            await client.send(b"".join(post(name) + b"x" * MB for name in ("a", "b", "a")))
            await until(lambda: len(server.body_budget) == 3 * MB)
            assert server.body_budget._by_principal == {"a": 2 * MB, "b": MB}
            may_end.set()
            for _ in range(3):
                assert (await client.answer()).status == 200
        await until(lambda: len(server.body_budget) == 0)
        assert server.body_budget._by_principal == {}


@pytest.mark.attack("A2-F4")
def test_unauthenticated_bodies_use_a_sixteenth_of_the_room() -> None:
    """Clients that aren't authenticated yet share a sixteenth of the room; the rest stays for principals."""
    budget = BodyBudget(16 * MB)
    taken = [budget.reserve(100_000, STRANGERS) for _ in range(1000)]
    assert len(budget) <= MB and taken.count(True) == MB // 100_000
    assert all(budget.reserve(4 * MB, principal) for principal in ("a", "b", "c"))


@pytest.mark.attack("B7")
async def test_body_counts_until_its_request_is_handled() -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        exchange.on_disconnect = lambda: None  # the handler continues, with the body
        await may_end.wait()
        ended.set()

    async with serving(handle) as (server, port):
        async with connected(port) as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MB + b"x" * MB)
            await until(lambda: server.active_count == 1)
        await until(lambda: len(server) == 0)
        assert len(server.body_budget) == MB
        may_end.set()
        await ended.wait()
        await until(lambda: len(server.body_budget) == 0)


# -- logins and sessions -----------------------------------------------------------------------------------------------


@pytest.mark.attack("W12")
async def test_pending_logins_of_other_callers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "MAX_PENDING_LOGINS", 10)
    endpoint = LoginEndpoint(None, lambda principal, server: True)  # type: ignore[arg-type]

    def start(principal: str, number: int) -> None:
        endpoint._make_room(principal)
        endpoint._pending[f"{principal} {number}"] = PendingLogin(principal, "", "s")

    start("victim", 0)
    for number in range(100):
        start("attacker", number)
    assert "victim 0" in endpoint._pending and len(endpoint._pending) == 6
    for number in range(100):
        start("second attacker", number)
        start("attacker", 100 + number)
    assert "victim 0" in endpoint._pending and len(endpoint._pending) == 10
    start("other victim", 0)
    for number in range(100):
        start("attacker", 200 + number)
    assert {"victim 0", "other victim 0"} <= endpoint._pending.keys() and len(endpoint._pending) == 10


@pytest.mark.attack("W19")
async def test_session_id_size_is_bounded(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for size, status in ((3000, 200), (40_000, 400)):
            body = handshake("initialize", {**HELLO, "capabilities": {"experimental": {"x": "x" * size}}})
            answer = await found.ask("POST", "/mcp", body)
            assert answer.status == status
            assert len(answer.headers.get("mcp-session-id", "")) < 2 * MAX_CAPABILITIES_BYTES
            assert ("mcp-session-id" in answer.headers) == (size < MAX_CAPABILITIES_BYTES)
            assert (b"capabilities must have at most 4096 bytes" in answer.body) == (size > MAX_CAPABILITIES_BYTES)

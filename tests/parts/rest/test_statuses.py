"""The status and body of each outcome: what ran, what did not, and what nobody knows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import Lab, full, lab
from tests.gateway.edge_lab import Edge, edge
from tests.parts.approvals.lab import asking
from tests.parts.rest.lab import facts, post, request
from toolway.gateway.mcp import errors
from toolway.gateway.mcp.errors import RpcFailure
from toolway.parts.rest import endpoint
from toolway.parts.rest.outcomes import reply_failure
from toolway.protocol.constants import INTERNAL_ERROR, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
WHOLE = "application/vnd.mcp+json"
ECHO = {"text": "x"}


def base_of(found: Edge) -> str:
    return f"http://127.0.0.1:{found.port}"


async def test_result_is_structured_content_or_text(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        text = await post(base_of(found), "a__echo", ECHO)
        assert (text.status_code, text.json()) == (200, {"text": "x"})
        added = await post(base_of(found), "a__add", {"a": 1, "b": 2})
        through_mcp = (await found.call("a__add", {"a": 1, "b": 2}))["result"]
        assert added.status_code == 200 and added.json() == through_mcp["structuredContent"]
        whole = await post(base_of(found), "a__add", {"a": 1, "b": 2}, accept=WHOLE)
        assert whole.headers["content-type"] == WHOLE and whole.json() == through_mcp
        for answer in (text, whole):
            assert answer.headers["cache-control"] == "private, no-store"


async def test_tool_error_is_422_and_ran(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        answer = await post(base_of(found), "a__fail", {"text": "no luck"})
        assert facts(answer) == (422, "yes") and "no luck" in answer.json()["message"]
        whole = await post(base_of(found), "a__fail", {"text": "no luck"}, accept=WHOLE)
        assert whole.status_code == 422 and whole.json()["isError"] is True


async def test_wrong_arguments_are_400_with_violations(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        answer = await post(base_of(found), "a__echo", {"text": 7})
        assert facts(answer) == (400, "no") and answer.json()["violations"]


async def test_unknown_tool_and_endpoint_are_404(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for tool, toolset in (("a__nothing", ""), ("a__echo", "none"), ("a__echo", "server"), ("nothing", "server/a")):
            assert facts(await post(base_of(found), tool, ECHO, toolset=toolset)) == (404, "no")


async def test_approval_is_403_with_its_id(tmp_path: Path) -> None:
    async with asking(tmp_path, {"bank.echo": {"by": "admin"}}) as found:
        answer = await post(found.base, "bank__echo", ECHO)
        assert facts(answer) == (403, "no") and answer.json()["approvalId"]


async def test_limit_is_429_with_retry_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge(tmp_path) as found:
        monkeypatch.setattr("toolway.gateway.router.MAX_REQUESTS_PER_PRINCIPAL", 0)
        answer = await post(base_of(found), "a__echo", ECHO)
        assert facts(answer) == (429, "no") and answer.headers["retry-after"] == "1"


async def test_down_server_is_503_with_retry_after() -> None:
    async with lab({"gone": {"url": "http://127.0.0.1:9/", "connectTimeout": 1}}, ready=False) as found:
        answer = await post(found.base, "gone__echo", ECHO)
        assert facts(answer) == (503, "no") and int(answer.headers["retry-after"]) >= 1


async def test_call_during_shutdown_is_503(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        found.gateway.router.rejects_new_requests = True
        answer = await post(base_of(found), "a__echo", ECHO)
        assert facts(answer) == (503, "no") and answer.headers["retry-after"] == "1" and found.calls("a") == 0


async def test_unknown_outcome_is_409(tmp_path: Path) -> None:
    async with full("modern", "stdio") as found:
        crashed = await post(found.base, "full__crash", {"code": 3})
        assert facts(crashed) == (409, "unknown") and "retry-after" not in crashed.headers


async def test_exception_during_a_call_is_409(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge(tmp_path) as found:

        def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError("broken")

        monkeypatch.setattr("toolway.gateway.mcp.dispatcher.RequestDispatcher._translate_result", fail)
        assert facts(await post(base_of(found), "a__echo", ECHO)) == (409, "unknown") and found.calls("a") == 1


@pytest.mark.parametrize(("tool", "executed"), [("elicit", "no"), ("ask", "yes")])
async def test_tool_that_needs_input_is_501(tool: str, executed: str) -> None:
    async with full("modern", "http") as found:
        answer = await post(found.base, f"full__{tool}", {})
        assert facts(answer) == (501, executed) and "retry-after" not in answer.headers


async def _task(found: Lab) -> tuple[asyncio.Task[Any], Json]:
    """Start a task; return the call that waits for it, and the task at its server."""
    call = asyncio.create_task(post(found.base, "full__start_task"))
    tasks = found.fakes["full"].server.tasks
    async with asyncio.timeout(30):
        while not tasks:
            await asyncio.sleep(0.01)
    return call, tasks["task-1"]


async def test_task_is_awaited() -> None:
    async with full("modern", "http") as found:
        call, task = await _task(found)
        result = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"n": 1}}
        task.update(status="completed", result=result)
        answer = await call
        assert (answer.status_code, answer.json()) == (200, {"n": 1})


async def test_failed_task_is_422() -> None:
    async with full("modern", "http") as found:
        call, task = await _task(found)
        task.update(status="failed", error={"code": 1, "message": "no luck"})
        answer = await call
        assert facts(answer) == (422, "yes") and answer.json()["message"] == "no luck"


async def test_task_that_needs_input_is_501_and_cancelled() -> None:
    async with full("modern", "http") as found:
        call, task = await _task(found)
        task.update(status="input_required", inputRequests={})
        assert facts(await call) == (501, "yes") and task["status"] == "cancelled"


async def test_task_past_the_deadline_is_409(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "TASK_WAIT_S", 1.0)
    async with full("modern", "http") as found:
        call, task = await _task(found)
        assert facts(await call) == (409, "unknown") and task["status"] == "cancelled"


@pytest.mark.parametrize(
    ("code", "data", "expected"),
    [
        (errors.DEADLINE, {"executed": "no"}, (503, "no")),
        (errors.STORE_UNAVAILABLE, {"executed": "no"}, (503, "no")),
        (errors.UPSTREAM_AUTH, {"executed": "no"}, (503, "no")),
        (errors.UPSTREAM_PROTOCOL, {"executed": "yes"}, (422, "yes")),
        (errors.RESULT_DROPPED, {"executed": "yes"}, (422, "yes")),
        (MISSING_REQUIRED_CLIENT_CAPABILITY, {"executed": "yes"}, (501, "yes")),
        (METHOD_NOT_FOUND, {"a": 1, "toolway": {"executed": "no"}}, (400, "no")),
        (INTERNAL_ERROR, {"toolway": {"executed": "unknown"}}, (409, "unknown")),
        (INTERNAL_ERROR, None, (409, "unknown")),
        (12, {"executed": "never"}, (409, "unknown")),
    ],
)
def test_failure_without_a_row_has_an_honest_status(code: int, data: Any, expected: tuple[int, str]) -> None:
    reply = reply_failure(RpcFailure(code, "no", data))
    assert (reply.status, json.loads(reply.body)["executed"]) == expected
    assert ("retry-after" in dict(reply.headers)) == (reply.status == 503)


@pytest.mark.parametrize("executed", ["no", "unknown", "yes"])
def test_no_code_makes_an_unknown_outcome_a_5xx(executed: str) -> None:
    for code in [*range(-31020, -31000), *range(-32800, -31999), 0, 1]:
        reply = reply_failure(RpcFailure(code, "no", {"executed": executed}))
        assert json.loads(reply.body)["executed"] == executed
        assert (reply.status == 409) == (executed == "unknown"), code


# -- requests that are not calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_forged_form_is_rejected(tmp_path: Path, kind: str) -> None:
    async with edge(tmp_path) as found:
        headers = {"content-type": kind} if kind else {}
        answer = await request(base_of(found), "POST", "/api/tools/a__echo", content=b'{"text":"x"}', headers=headers)
        assert facts(answer) == (415, "no") and found.calls("a") == 0


async def test_foreign_origin_and_host_are_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for header, status in ({"Origin": "http://evil.example"}, 403), ({"Host": "evil.example"}, 421):
            for method, path in ("POST", "/api/tools/a__echo"), ("GET", "/api/openapi.json"):
                assert (await found.ask(method, path, b"{}" if method == "POST" else b"", header)).status == status
        assert found.calls("a") == 0


@pytest.mark.parametrize("body", [b"[1]", b'"x"', b"{", b'{"text":"a","text":"b"}', b'{"text":NaN}', b"[" * 100_000])
async def test_body_that_is_not_an_object_is_400(tmp_path: Path, body: bytes) -> None:
    async with edge(tmp_path) as found:
        answer = await found.ask("POST", "/api/tools/a__echo", body)
        assert answer.status == 400 and json.loads(answer.body)["executed"] == "no" and found.calls("a") == 0


async def test_each_tool_has_one_path(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for path in (
            "/api/tools/%61__echo",
            "/API/tools/a__echo",
            "/api//tools/a__echo",
            "/api/tools/a__echo/",
            "/api",
        ):
            assert (await found.ask("POST", path, ECHO)).status == 404
        for method, path in ("GET", "/api/tools/a__echo"), ("POST", "/api/openapi.json"), ("DELETE", "/api/tools/x"):
            assert (await found.ask(method, path)).status == 405
        assert found.calls("a") == 0


async def test_large_arguments_and_results_pass(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        text = "x" * 2_000_000
        assert (await post(base_of(found), "a__echo", {"text": text})).json() == {"text": text}


async def test_repeated_idempotency_key_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        data = found.request("POST", "/api/tools/a__echo", ECHO, {"Idempotency-Key": "a"})
        data = data.replace(b"Idempotency-Key: a\r\n", b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n")
        async with found.connected() as client:
            assert (await client.ask(data)).status == 400
        assert found.calls("a") == 0


async def test_revoked_key_is_rejected_at_once(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token, key = found.keyring.create_key_sync("ci", None, False, 0.0)
        async with found.connected() as client:
            data = found.request("POST", "/api/tools/a__echo", ECHO, token=token)
            assert (await client.ask(data)).status == 200
            await found.keyring.revoke_key(key.id)
            assert (await found.ask("POST", "/api/tools/a__echo", ECHO, token=token)).status == 401


async def test_search_endpoint_calls_the_named_tool(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        call = {"name": "a__echo", "arguments": ECHO}
        answer = await post(base_of(found), "call_tool", call, toolset="search")
        assert (answer.status_code, answer.json()) == (200, {"text": "x"})
        wrong = await post(base_of(found), "call_tool", {"name": "a__echo", "arguments": {"text": 1}}, toolset="search")
        assert facts(wrong) == (400, "no") and found.calls("a") == 1

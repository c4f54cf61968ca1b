"""Each mode of the fake HTTP server does what it says, and no more."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib

import pytest

from tests.testing.web import ACCEPT, ERAS, Client, Json, Response, fake, story, text

GONE = (ConnectionError, asyncio.IncompleteReadError)


async def fine(client: Client) -> bool:
    return text(await client.call("echo", text="fine")) == "fine"


# The connection


@pytest.mark.parametrize(
    ("mode", "error"),
    [("reset_before_response", ConnectionResetError), ("close_before_response", asyncio.IncompleteReadError)],
)
@story
async def test_one_of_many_calls_loses_its_connection(mode: str, error: type[Exception]) -> None:
    async with fake() as client:
        calls = [client.call("sleep", seconds=0.1, nonce=str(number)) for number in range(9)]
        bad = client.call("bad", mode=mode, effect=True, nonce="bad")
        *good, lost = await asyncio.gather(*calls, bad, return_exceptions=True)
        assert isinstance(lost, error)
        nonces = [result["structuredContent"]["nonce"] for result in good if isinstance(result, dict)]
        assert nonces == list("012345678")
        assert [nonce for _, nonce in client.server.stats.effects] == ["bad"]


@story
async def test_connection_is_closed_after_the_response() -> None:
    async with fake() as client:
        response = await client.send_call("bad", mode="close_after_response")
        assert (await response.message())["result"]
        assert await response.reader.read() == b""


@story
async def test_no_response_at_all() -> None:
    async with fake("never") as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send_call("bad"), 0.1)
        assert await fine(client)


# The head


@pytest.mark.parametrize("after", ["7", "Wed, 21 Oct 2026 07:28:00 GMT", "soon", "-1", "1000000000"])
@story
async def test_status_with_retry_after(after: str) -> None:
    async with fake() as client:
        response = await client.send_call("bad", mode="status=429", retry_after=after)
        assert (response.status, response.headers["retry-after"]) == (429, after)
        assert await fine(client)


@story
async def test_status_rejects_call_unless_effect_is_requested() -> None:
    async with fake("status=503;on=counter;times=2;retry_after=1") as client:
        for _ in range(2):
            assert (await client.send_call("counter")).status == 503
        assert client.server.stats.effects == []
        assert (await client.send_call("counter")).status == 200
        assert (await client.send_call("bad", mode="status=500", effect=True, nonce="n")).status == 500
        assert client.server.stats.effects[-1][1] == "n"


@story
async def test_401_has_a_challenge() -> None:
    async with fake('status=401;challenge=Bearer error="invalid_token"') as client:
        response = await client.send_call("bad")
        assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'


@story
async def test_redirects_have_status_and_location() -> None:
    async with fake() as client:
        response = await client.send_call("bad", mode="redirect")
        assert (response.status, response.headers["location"]) == (307, "/moved")
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad", "arguments": {}}}
        moved = await client.request("POST", client.headers(message), json.dumps(message).encode(), path="/moved")
        assert (await moved.message())["error"]["code"] == -32602  # the honest answer to a request without _meta
        other = await client.send_call("bad", mode="redirect=301", to="http://127.0.0.2:1/")
        assert (other.status, other.headers["location"]) == (301, "http://127.0.0.2:1/")


@pytest.mark.parametrize(
    ("mode", "status", "kind"),
    [
        ("html", 200, "text/html"),
        ("content_type", 200, "text/plain"),
        ("content_type=application/xml", 200, "application/xml"),
        ("empty_202", 202, None),
        ("no_content", 204, None),
    ],
)
@story
async def test_responses_without_a_message(mode: str, status: int, kind: str | None) -> None:
    async with fake(mode) as client:
        response = await client.send_call("bad")
        assert (response.status, response.headers.get("content-type")) == (status, kind)


# The body


@pytest.mark.parametrize("mode", ["slow_body=0.001", "slow_head=0.001"])
@story
async def test_slow_responses(mode: str) -> None:
    async with fake(mode) as client:
        start = time.monotonic()
        assert (await client.call("bad"))["content"]
        assert time.monotonic() - start > 0.05


@story
async def test_bodies_that_do_not_match_their_head() -> None:
    async with fake() as client:
        with pytest.raises(GONE):
            await (await client.send_call("bad", mode="cut_body")).body()
        short = await client.send_call("bad", mode="wrong_length")
        assert not (await short.body()).endswith(b"}")
        long = await client.send_call("bad", mode="wrong_length=5")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(long.body(), 0.1)
        with pytest.raises(ValueError, match="zz"):
            await (await client.send_call("bad", mode="chunk_error")).body()
        both = await client.send_call("bad", mode="cl_and_te")
        assert {"content-length", "transfer-encoding"} <= set(both.headers)
        assert await fine(client)


@story
async def test_large_bodies_and_events() -> None:
    async with fake() as client:
        assert len(await (await client.send_call("bad", mode="body_mb=2")).body()) > 2_000_000
        assert len(await (await client.send_call("bad", mode="sse_event_mb=2")).body()) > 2_000_000


@story
async def test_compressed_bodies() -> None:
    async with fake() as client:
        honest = await client.send_call("bad", mode="gzip")
        assert honest.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(await honest.body()))["result"]
        bomb = await (await client.send_call("bad", mode="gzip_bomb=200")).body()
        assert 150_000 < len(bomb) < 250_000
        small = await (await client.send_call("bad", mode="gzip_bomb=3")).body()
        assert len(zlib.decompress(small, wbits=31)) > 3_000_000


@pytest.mark.parametrize(
    ("mode", "shows"),
    [
        ("bom", b"\xef\xbb\xbf{"),
        ("bad_utf8", b"\xe9"),
        ("nan", b":NaN"),
        ("duplicate_keys", b'"spoiled":1,"spoiled":2'),
        ("deep", b"[" * 1000),
        ("result_not_object", b'"result":["done"]'),
        ("id_of_other", b'"id":987654321'),
    ],
)
@story
async def test_invalid_responses(mode: str, shows: bytes) -> None:
    async with fake() as client:
        assert shows in await (await client.send_call("bad", mode=mode)).body()
        assert await fine(client)


@story
async def test_id_of_another_running_call() -> None:
    async with fake() as client:
        other = asyncio.ensure_future(client.call("sleep", seconds=0.3))
        await asyncio.sleep(0.1)
        assert (await (await client.send_call("bad", mode="id_of_other")).message())["id"] == 1
        assert (await other)["content"]


# The stream of events


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("where", "whole"), [("before", 0), ("between", 1), ("inside", 1)])
@story
async def test_cut_streams(era: str, where: str, whole: int) -> None:
    async with fake(f"cut_sse={where}", era=era) as client:
        events: list[Json] = []
        with pytest.raises((*GONE, json.JSONDecodeError)):
            await _collect(await client.send_call("bad"), events)
        assert len(events) == whole
        ended = await client.send_call("bad", mode=f"cut_sse={where}", clean=True)
        assert b'"result":{"content"' not in await ended.body() or where == "inside"


async def _collect(response: Response, events: list[Json]) -> None:
    async for event in response.events():
        events.append(event)  # noqa: PERF401 (what came before the cut is wanted)


@story
async def test_cut_legacy_stream_can_be_resumed() -> None:
    async with fake("cut_sse=between;ids=1", era="legacy") as client:
        response = await client.send_call("bad", nonce="n")
        chunk = await anext(response.chunks())
        id = chunk.split(b"\n")[0].removeprefix(b"id: ").decode()
        resumed = await client.request("GET", {**ACCEPT, "Mcp-Session-Id": client.session, "Last-Event-ID": id})
        assert (await resumed.message())["result"]["structuredContent"]["nonce"] == "n"
        assert client.server.stats.resumes == [id]


@story
async def test_floods_of_events() -> None:
    async with fake() as client:
        comments = await (await client.send_call("bad", mode="sse_comment_flood=1")).body()
        assert comments.count(b"\n: ") > 9000
        reports = await (await client.send_call("bad", mode="progress_flood=700")).body()
        assert reports.count(b'"unknown"') == 700
        assert b'"result"' in reports


# The session, the probe and the lists


@story
async def test_sessions_are_dropped() -> None:
    async with fake(era="legacy") as client:
        assert (await client.call("bad", mode="drop_sessions"))["content"]
        assert (await client.send("tools/list")).status == 404


@story
async def test_failing_probes() -> None:
    async with fake("discover_503_once") as client:
        assert [(await client.send("server/discover")).status for _ in range(2)] == [503, 200]
        assert client.server.stats.discover == 2
    async with fake("discover_status=403") as client:
        assert [(await client.send("server/discover")).status for _ in range(2)] == [403, 403]
        assert await fine(client)
    async with fake("probe_hang") as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send("server/discover"), 0.1)
        assert await fine(client)


@story
async def test_bad_tool_lists() -> None:
    async with fake("malformed_tool", "repeated_cursor") as client:
        page = (await client.ask("tools/list"))["result"]
        assert page["nextCursor"] == "again"
        assert any("name" not in tool for tool in page["tools"])


@story
async def test_modes_can_be_set_and_cleared_while_running() -> None:
    async with fake() as client:
        client.server.set_mode("status=502;on=*")
        assert (await client.send("tools/list")).status == 502
        client.server.clear_modes()
        assert await fine(client)
        with pytest.raises(ValueError, match="nope"):
            client.server.set_mode("nope")
        refused = await client.send_call("bad", mode="nope")
        assert (refused.status, (await refused.message())["error"]["code"]) == (400, -32602)

"""Tests of the embedding service: a real HTTP server on loopback that speaks OpenAI's form, well or badly."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")

from tests.parts.search.stores import file_store  # noqa: E402
from tests.parts.search.test_vectors import make_tools  # noqa: E402
from toolway.network import PUBLIC_ONLY, NetworkPolicy  # noqa: E402
from toolway.parts.search.endpoint import PAUSES_S, Breaker, EmbeddingEndpoint  # noqa: E402
from toolway.parts.search.vector_store import EmbeddingError  # noqa: E402
from toolway.parts.search.vectors import ModelVectors  # noqa: E402

pytestmark = pytest.mark.anyio


class Service:
    """The service and what it was asked. `answer` may be replaced by one that misbehaves."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.answer: Callable[[Any], tuple[int, bytes]] = self.embed
        self.released = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status, answer = service.answer(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                if status == 307:
                    self.send_header("Location", service.url)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/embeddings"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def embed(self, body: Any) -> tuple[int, bytes]:
        width = body.get("dimensions", 8)
        data = [
            {"object": "embedding", "index": at, "embedding": [float(ord(text[at % len(text)])) for at in range(width)]}
            for at, text in enumerate(body["input"])
        ]
        return 200, json.dumps({"object": "list", "data": data, "model": body["model"], "usage": {}}).encode()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


async def no_key() -> str:
    return ""


def endpoint(service: Service, get_key=no_key, dimensions: int | None = None, url: str = "") -> EmbeddingEndpoint:
    return EmbeddingEndpoint(url or service.url, "small", get_key, dimensions, PUBLIC_ONLY)


async def test_request_has_openai_format(service):
    async def get_key() -> str:
        return "sk-1"

    embedder = endpoint(service, get_key, dimensions=4)
    (vector,) = await embedder.embed(["mail"], 10)
    ((headers, body),) = service.requests
    assert headers["authorization"] == "Bearer sk-1" and headers["content-type"] == "application/json"
    assert body == {"model": "small", "input": ["mail"], "encoding_format": "float", "dimensions": 4}
    assert vector.shape == (4,) and float(np.linalg.norm(vector)) == pytest.approx(1)
    await embedder.close()


async def test_vectors_are_in_the_order_of_the_texts(service):
    embedder = endpoint(service)
    straight = await embedder.embed(["mail", "weather", "issue"], 10)

    def shuffled(body: Any) -> tuple[int, bytes]:
        status, answer = service.embed(body)
        content = json.loads(answer)
        content["data"].reverse()
        return status, json.dumps(content).encode()

    service.answer = shuffled
    again = await embedder.embed(["mail", "weather", "issue"], 10)
    assert all(np.allclose(a, b) for a, b in zip(straight, again, strict=True))
    await embedder.close()


def _answer_with(data: Any) -> Callable[[Any], tuple[int, bytes]]:
    return lambda body: (200, json.dumps({"data": data}).encode())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda body: (500, b"{}"), "answered HTTP 500"),
        (lambda body: (429, b"{}"), "answered HTTP 429"),
        (lambda body: (401, b"{}"), "rejected the key"),
        (lambda body: (307, b""), "answered HTTP 307"),
        (lambda body: (200, b"<html>"), "not a list of vectors"),
        (lambda body: (200, b'{"data": 3}'), "not a list of vectors"),
        (lambda body: (200, b"\xff\xfe"), "not a list of vectors"),
        (_answer_with([]), "0 vectors for 2 strings"),
        (_answer_with([{"index": 0, "embedding": [1.0] * 8}] * 2), "numbers do not match"),
        (_answer_with([{"index": at, "embedding": [1.0] * (8 - at)} for at in range(2)]), "7 numbers, not 8"),
        (_answer_with([{"index": at, "embedding": [0.0] * 8} for at in range(2)]), "zero or not finite"),
        (_answer_with([{"index": at, "embedding": [1e300] * 8} for at in range(2)]), "zero or not finite"),
        (_answer_with([{"index": at, "embedding": ["x"] * 8} for at in range(2)]), "not a list of vectors"),
    ],
)
async def test_invalid_response_is_an_embedding_error(service, answer, reason):
    service.answer = answer
    embedder = endpoint(service, dimensions=8)
    with pytest.raises(EmbeddingError, match=reason):
        await embedder.embed(["mail", "issue"], 10)
    assert len(service.requests) == 1
    await embedder.close()


async def test_slow_service_times_out(service: Service):
    def wait(body: Any) -> tuple[int, bytes]:
        service.released.wait()
        return service.embed(body)

    service.answer = wait
    embedder = endpoint(service)
    with pytest.raises(EmbeddingError, match=r"did not answer within 0\.05 s"):
        await embedder.embed(["mail"], 0.05)
    await embedder.close()


async def test_three_failures_in_a_row_pause_the_service(service):
    service.answer = lambda body: (503, b"")
    embedder = endpoint(service)
    for _ in range(6):
        with pytest.raises(EmbeddingError):
            await embedder.embed(["mail"], 10)
    assert len(service.requests) == 3
    with pytest.raises(EmbeddingError, match="failed repeatedly; it is tried again in"):
        await embedder.embed(["mail"], 10)
    await embedder.close()


def test_pauses_grow_and_success_resets_them():
    breaker, now = Breaker(), 100.0
    for pause in (0.0, 0.0, *PAUSES_S, PAUSES_S[-1]):
        breaker.on_failure(now)
        assert breaker.pause_left(now) == pause
        now += pause
        assert breaker.pause_left(now) == 0
    breaker.on_success()
    breaker.on_failure(now)
    assert breaker.pause_left(now) == 0


async def test_rejected_key_is_fetched_again(service):
    keys = iter(["old", "new"])

    async def get_key() -> str:
        return next(keys)

    embedder = endpoint(service, get_key)
    service.answer = lambda body: (401, b"")
    with pytest.raises(EmbeddingError, match="rejected the key") as failure:
        await embedder.embed(["mail"], 10)
    assert "old" not in str(failure.value)
    service.answer = service.embed
    await embedder.embed(["mail"], 10)
    assert [headers["authorization"] for headers, _ in service.requests] == ["Bearer old", "Bearer new"]
    await embedder.close()


async def test_key_with_line_end_is_not_sent(service):
    async def get_key() -> str:
        return "key\r\nX-Other: 1"

    embedder = endpoint(service, get_key)
    with pytest.raises(EmbeddingError, match="characters that a header cannot have"):
        await embedder.embed(["mail"], 10)
    assert service.requests == []
    await embedder.close()


async def test_network_policy_applies(service):
    policy = NetworkPolicy(trusts_entries=False)
    embedder = EmbeddingEndpoint(service.url, "small", no_key, None, policy)
    with pytest.raises(EmbeddingError):
        await embedder.embed(["mail"], 10)
    assert service.requests == []
    await embedder.close()


async def test_tools_are_sent_in_batches_once_and_stored(service, tmp_path):
    tools = make_tools(*(f"tool_{number}" for number in range(150)))
    for expected in ([64, 64, 22], []):
        embedder = endpoint(service)
        source = ModelVectors(embedder, file_store(tmp_path, embedder.identity), query_timeout=30)
        await source.prepare([], tools)
        await source.wait_complete()
        assert [len(body["input"]) for _, body in service.requests] == expected
        await source.prepare(["mail"], tools)
        found = source.score("mail", tools)
        assert found is not None and len(found) == 150 and None not in found
        await source.close()
        service.requests.clear()


async def test_model_of_other_dimensions_ignores_stored_vectors(service, tmp_path):
    tools = make_tools("send_mail", "create_issue")
    for dimensions in (4, 6):
        embedder = endpoint(service, dimensions=dimensions)
        source = ModelVectors(embedder, file_store(tmp_path, embedder.identity), query_timeout=30)
        await source.prepare(["mail"], tools)
        await source.wait_complete()
        assert source.score("mail", tools) is not None
        await source.close()
    assert [len(body["input"]) for _, body in service.requests if body["input"] != ["mail"]] == [2, 2]


async def test_failing_tool_batches_leave_search_by_words(service, tmp_path):
    """A service that refuses batches leaves queries without anything to compare: words alone, with a reason."""
    service.answer = lambda body: service.embed(body) if len(body["input"]) == 1 else (413, b"")
    embedder = endpoint(service)

    async def never(seconds: float) -> None:
        await asyncio.Event().wait()

    source = ModelVectors(embedder, file_store(tmp_path, embedder.identity), query_timeout=30, sleep=never)
    tools = make_tools("send_mail", "create_issue")
    await source.prepare(["mail"], tools)
    assert source.score("mail", tools) is None
    assert "answered HTTP 413" in source.problem
    await source.close()

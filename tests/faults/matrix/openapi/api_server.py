"""An HTTP API with a document, good at everything except that a test writes the bytes of its answers.

    async def react(turn: Turn) -> None:
        await turn.conn.send(turn.good[:10])

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        await bench.call("bad.act", {"effect": True})

Its operations: `act` (POST) and `mend` (PATCH), which may not be run twice, `put` and `drop` (PUT, DELETE), which may,
`look` (GET), `talk` (POST), which answers with a stream of events, and `find` (GET), with a parameter in every place.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.upstream.raw_http import Conn, Peer, Received, json_response, peer, reacting

Json = dict[str, Any]


def _operation(name: str) -> Json:
    texts = [{"name": each, "in": "query", "schema": {"type": "string"}} for each in ("nonce", "word")]
    answer = {"type": "object", "properties": {"nonce": {"type": "string"}}, "required": ["nonce"]}
    return {
        "operationId": name,
        "parameters": [*texts, {"name": "effect", "in": "query", "schema": {"type": "boolean"}}],
        "responses": {"200": {"description": "done", "content": {"application/json": {"schema": answer}}}},
    }


def _find() -> Json:
    places = {"id": "path", "q": "query", "X-Word": "header", "c": "cookie"}
    text = {"type": "string"}
    parameters = [{"name": n, "in": p, "required": p == "path", "schema": text} for n, p in places.items()]
    return {**_operation("find"), "parameters": [*parameters, *_operation("find")["parameters"][:1]]}


def _talk() -> Json:
    events = {"200": {"description": "events", "content": {"text/event-stream": {}}}}
    return {**_operation("talk"), "responses": events}


DOCUMENT: Json = {
    "openapi": "3.1.0",
    "info": {"title": "Scripted", "version": "1"},
    "paths": {
        "/act": {"post": _operation("act"), "patch": _operation("mend")},
        "/look": {"get": _operation("look")},
        "/talk": {"post": _talk()},
        "/find/{id}/all": {"get": _find()},
        "/thing": {"put": _operation("put"), "delete": _operation("drop")},
    },
}


@dataclass
class Turn:
    """One call of an operation, to be answered."""

    server: Api
    conn: Conn
    request: Received
    number: int  # of this call, from 0
    at: float  # when it came

    @property
    def arguments(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.request.target).query)
        return {name: values[0] for name, values in found.items()}

    @property
    def message(self) -> Json:
        """The answer of a good API."""
        return {"nonce": self.arguments.get("nonce", "")}

    @property
    def good(self) -> bytes:
        return json_response(self.message)

    async def answer_well(self) -> None:
        self.take_effect()
        await self.conn.send(self.good)

    def take_effect(self) -> None:
        """Do what must not be done twice, as the fakes do."""
        if self.arguments.get("effect") == "true" and self.server.effects:
            with open(self.server.effects, "a") as file:
                file.write(f"{self.number}\t{self.arguments.get('nonce', '')}\n")


React = Callable[[Turn], Awaitable[None]]


@dataclass
class Api:
    react: React
    effects: str = ""
    peer: Peer = field(default_factory=Peer)
    turns: list[Turn] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.peer.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/api/v1"

    def entry(self, **more: Any) -> Json:
        openapi = {"document": DOCUMENT, **more.pop("openapi", {})}
        return {"type": "openapi", "url": self.url, "openapi": openapi, **more}

    async def serve(self, conn: Conn, request: Received) -> None:
        turn = Turn(self, conn, request, len(self.turns), time.monotonic())
        self.turns.append(turn)
        await self.react(turn)


async def well(turn: Turn) -> None:
    await turn.answer_well()


@asynccontextmanager
async def api(react: React = well) -> AsyncIterator[Api]:
    server = Api(react)
    async with peer(reacting(server.serve)) as facts:
        server.peer = facts
        yield server

"""A small HTTP API with an OpenAPI document, to try things out with: a shop of pets.

    python -m toolway.testing.fake_api --port 8701 --key sesame

Its document is at /openapi.json. Reading is free, changing needs the key in `X-Api-Key`. The list comes in pages. A pet
is sold once for each `Idempotency-Key`, however often it is asked for. `/pets/{id}/photo` is an image.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

_PIXEL: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_PAGE: Final = 2
_PET: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "kind": {"type": "string", "enum": ["cat", "dog", "fish"]},
        "sold": {"type": "boolean"},
    },
}


def _answer(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "ok", "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, place: str, kind: str, about: str) -> dict[str, Any]:
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "description": about, "schema": {"type": kind}, **required}


def document() -> dict[str, Any]:
    """What the API says about itself."""
    ref = {"$ref": "#/components/schemas/Pet"}
    pet = _parameter("id", "path", "integer", "The number of the pet.")
    listing = {
        "type": "object",
        "properties": {"pets": {"type": "array", "items": ref}, "has_more": {"type": "boolean"}},
    }
    new = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "kind": {"type": "string"}},
    }
    body = {"required": True, "content": {"application/json": {"schema": new}}}
    key: list[dict[str, list[str]]] = [{"shopkeeper": []}]
    no = {"404": {"description": "There is no such pet."}}
    photo = {"200": {"description": "ok", "content": {"image/png": {}}}}
    page = _parameter("page", "query", "integer", "Which page, from 1.")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pet shop", "version": "1.0"},
        "servers": [{"url": "/v1"}],
        "paths": {
            "/pets": {
                "get": {
                    "operationId": "list_pets",
                    "summary": "All pets, page by page.",
                    "parameters": [page],
                    "responses": {"200": _answer(listing)},
                },
                "post": {
                    "operationId": "add_pet",
                    "summary": "Take in a new pet.",
                    "requestBody": body,
                    "security": key,
                    "responses": {"201": _answer(ref)},
                },
            },
            "/pets/{id}": {
                "parameters": [pet],
                "get": {"operationId": "get_pet", "summary": "One pet.", "responses": {"200": _answer(ref), **no}},
            },
            "/pets/{id}/sale": {
                "parameters": [pet],
                "post": {
                    "operationId": "sell_pet",
                    "summary": "Sell a pet.",
                    "security": key,
                    "responses": {"200": _answer(ref), "409": {"description": "It is sold already."}, **no},
                },
            },
            "/pets/{id}/photo": {
                "parameters": [pet],
                "get": {"operationId": "get_photo", "summary": "What it looks like.", "responses": {**photo, **no}},
            },
        },
        "components": {
            "schemas": {"Pet": _PET},
            "securitySchemes": {"shopkeeper": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}},
        },
    }


class Shop:
    def __init__(self, key: str) -> None:
        self.key = key
        self.pets: list[dict[str, Any]] = [
            {"id": number, "name": name, "kind": kind, "sold": False}
            for number, (name, kind) in enumerate([("Minka", "cat"), ("Rex", "dog"), ("Blub", "fish")], 1)
        ]
        self.sales: dict[str, dict[str, Any]] = {}  # by idempotency key

    def listed(self, page: int) -> dict[str, Any]:
        start = (page - 1) * _PAGE
        return {"pets": self.pets[start : start + _PAGE], "has_more": len(self.pets) > start + _PAGE}

    def sell(self, pet: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        if key and key in self.sales:
            return 200, self.sales[key]
        if pet["sold"]:
            return 409, {"title": f"{pet['name']} is sold already"}
        pet["sold"] = True
        self.sales[key] = dict(pet)
        return 200, pet


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shop: Shop

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/v1").strip("/").split("/")
        if parts.path == "/openapi.json":
            self._say(200, document())
        elif path[0] != "pets" or not parts.path.startswith("/v1/"):
            self._say(404, {"title": "there is nothing here"})
        elif self.command == "POST" and self.headers.get("X-Api-Key") != self.shop.key:
            self._say(401, {"title": "only the shopkeeper may do this"})
        elif len(path) == 1:
            self._pets(body, parts.query)
        else:
            self._pet(path[1:])

    def _pets(self, body: bytes, query: str) -> None:
        if self.command == "GET":
            self._say(200, self.shop.listed(int(parse_qs(query).get("page", ["1"])[0])))
            return
        new = json.loads(body)
        pet = {"id": len(self.shop.pets) + 1, "name": new["name"], "kind": new.get("kind", "cat"), "sold": False}
        self.shop.pets.append(pet)
        self._say(201, pet)

    def _pet(self, path: list[str]) -> None:
        pet = next((each for each in self.shop.pets if str(each["id"]) == path[0]), None)
        if pet is None:
            self._say(404, {"title": f"there is no pet number {path[0]}"})
        elif path[1:] == ["photo"]:
            self._send(200, "image/png", _PIXEL)
        elif path[1:] == ["sale"]:
            self._say(*self.shop.sell(pet, self.headers.get("Idempotency-Key", "")))
        else:
            self._say(200, pet)

    def _say(self, status: int, value: Any) -> None:
        self._send(
            status, "application/json" if status < 400 else "application/problem+json", json.dumps(value).encode()
        )

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="sesame")
    options = parser.parse_args()
    handler = type("Handler", (Handler,), {"shop": Shop(options.key)})
    with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
        print(f"the pet shop is open: http://127.0.0.1:{server.server_address[1]}/openapi.json", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)


if __name__ == "__main__":
    main()

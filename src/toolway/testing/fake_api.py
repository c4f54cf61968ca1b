"""Small HTTP API with an OpenAPI document, for tests and tutorials: a pet shop.

    python -m toolway.testing.fake_api --port 8701 --key sesame

Its document is at /openapi.json. Reads work without a key, changes need the key in `X-Api-Key`. The list of pets has
pages. A pet is sold once per `Idempotency-Key`, even if the request is repeated. `/pets/{id}/photo` is an image.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

_PNG_PIXEL: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_PAGE_SIZE: Final = 2
_PET_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "kind": {"type": "string", "enum": ["cat", "dog", "fish"]},
        "sold": {"type": "boolean"},
    },
}


def _json_response(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "ok", "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, location: str, json_type: str, description: str) -> dict[str, Any]:
    required = {"required": True} if location == "path" else {}
    return {"name": name, "in": location, "description": description, "schema": {"type": json_type}, **required}


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document that describes the pet shop API."""
    pet_ref = {"$ref": "#/components/schemas/Pet"}
    id_parameter = _parameter("id", "path", "integer", "The number of the pet.")
    page_schema = {
        "type": "object",
        "properties": {"pets": {"type": "array", "items": pet_ref}, "has_more": {"type": "boolean"}},
    }
    new_pet_schema = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "kind": {"type": "string"}},
    }
    body = {"required": True, "content": {"application/json": {"schema": new_pet_schema}}}
    key_required: list[dict[str, list[str]]] = [{"shopkeeper": []}]
    not_found = {"404": {"description": "The pet does not exist."}}
    photo_response = {"200": {"description": "ok", "content": {"image/png": {}}}}
    page_parameter = _parameter("page", "query", "integer", "The page number, from 1.")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pet shop", "version": "1.0"},
        "servers": [{"url": "/v1"}],
        "paths": {
            "/pets": {
                "get": {
                    "operationId": "list_pets",
                    "summary": "All pets, page by page.",
                    "parameters": [page_parameter],
                    "responses": {"200": _json_response(page_schema)},
                },
                "post": {
                    "operationId": "add_pet",
                    "summary": "Take in a new pet.",
                    "requestBody": body,
                    "security": key_required,
                    "responses": {"201": _json_response(pet_ref)},
                },
            },
            "/pets/{id}": {
                "parameters": [id_parameter],
                "get": {
                    "operationId": "get_pet",
                    "summary": "One pet.",
                    "responses": {"200": _json_response(pet_ref), **not_found},
                },
            },
            "/pets/{id}/sale": {
                "parameters": [id_parameter],
                "post": {
                    "operationId": "sell_pet",
                    "summary": "Sell a pet.",
                    "security": key_required,
                    "responses": {
                        "200": _json_response(pet_ref),
                        "409": {"description": "The pet is sold already."},
                        **not_found,
                    },
                },
            },
            "/pets/{id}/photo": {
                "parameters": [id_parameter],
                "get": {
                    "operationId": "get_photo",
                    "summary": "The photo of a pet.",
                    "responses": {**photo_response, **not_found},
                },
            },
        },
        "components": {
            "schemas": {"Pet": _PET_SCHEMA},
            "securitySchemes": {"shopkeeper": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}},
        },
    }


class PetShop:
    def __init__(self, api_key: str) -> None:
        self.api_key = api_key
        self.pets: list[dict[str, Any]] = [
            {"id": number, "name": name, "kind": kind, "sold": False}
            for number, (name, kind) in enumerate([("Minka", "cat"), ("Rex", "dog"), ("Blub", "fish")], 1)
        ]
        self.sale_by_key: dict[str, dict[str, Any]] = {}  # idempotency key -> sold pet

    def list_page(self, page: int) -> dict[str, Any]:
        start = (page - 1) * _PAGE_SIZE
        return {"pets": self.pets[start : start + _PAGE_SIZE], "has_more": len(self.pets) > start + _PAGE_SIZE}

    def sell(self, pet: dict[str, Any], idempotency_key: str) -> tuple[int, dict[str, Any]]:
        if idempotency_key and idempotency_key in self.sale_by_key:
            return 200, self.sale_by_key[idempotency_key]
        if pet["sold"]:
            return 409, {"title": f"{pet['name']} is sold already"}
        pet["sold"] = True
        self.sale_by_key[idempotency_key] = dict(pet)
        return 200, pet


class PetShopHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shop: PetShop

    def do_GET(self) -> None:
        self._handle_request()

    def do_POST(self) -> None:
        self._handle_request()

    def _handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/v1").strip("/").split("/")
        if parts.path == "/openapi.json":
            self._send_json(200, openapi_document())
        elif path[0] != "pets" or not parts.path.startswith("/v1/"):
            self._send_json(404, {"title": "unknown path"})
        elif self.command == "POST" and self.headers.get("X-Api-Key") != self.shop.api_key:
            self._send_json(401, {"title": "X-Api-Key is missing or wrong"})
        elif len(path) == 1:
            self._handle_pets(body, parts.query)
        else:
            self._handle_pet(path[1:])

    def _handle_pets(self, body: bytes, query: str) -> None:
        if self.command == "GET":
            self._send_json(200, self.shop.list_page(int(parse_qs(query).get("page", ["1"])[0])))
            return
        new = json.loads(body)
        pet = {"id": len(self.shop.pets) + 1, "name": new["name"], "kind": new.get("kind", "cat"), "sold": False}
        self.shop.pets.append(pet)
        self._send_json(201, pet)

    def _handle_pet(self, path: list[str]) -> None:
        pet = next((each for each in self.shop.pets if str(each["id"]) == path[0]), None)
        if pet is None:
            self._send_json(404, {"title": f"no pet has the number {path[0]}"})
        elif path[1:] == ["photo"]:
            self._send(200, "image/png", _PNG_PIXEL)
        elif path[1:] == ["sale"]:
            self._send_json(*self.shop.sell(pet, self.headers.get("Idempotency-Key", "")))
        else:
            self._send_json(200, pet)

    def _send_json(self, status: int, value: Any) -> None:
        self._send(
            status, "application/json" if status < 400 else "application/problem+json", json.dumps(value).encode()
        )

    def _send(self, status: int, content_type: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, because the fake API keeps no request log."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="sesame")
    options = parser.parse_args()
    handler = type("Handler", (PetShopHandler,), {"shop": PetShop(options.key)})
    with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
        print(f"pet shop API listening: http://127.0.0.1:{server.server_address[1]}/openapi.json", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)


if __name__ == "__main__":
    main()

"""A small MCP server over pipes, one of several characters. Run by its path: it needs nothing but Python.

python server.py weather|shop|library|payments|pictures|broken
"""

from __future__ import annotations

import base64
import json
import os
import random
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

WRITING = threading.Lock()


def text(value: str, failed: bool = False) -> Json:
    return {"content": [{"type": "text", "text": value}], **({"isError": True} if failed else {})}


def structured(value: Json) -> Json:
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}


def nap(least: float, most: float) -> None:
    time.sleep(random.uniform(least, most))


def forecast(city: str = "Lisbon", days: int = 3) -> Json:
    nap(0.01, 0.06)
    weather = ["sun", "rain", "wind", "fog"]
    rows = [{"day": day, "high": random.randint(8, 30), "sky": random.choice(weather)} for day in range(int(days))]
    return structured({"city": city, "days": rows})


def stations(near: str = "") -> Json:
    nap(0.005, 0.02)
    return text("\n".join(f"{name} {near}".strip() for name in ("airport", "harbour", "old town")))


def find_order(number: int = 1) -> Json:
    nap(0.1, 0.9 if random.random() < 0.2 else 0.3)
    return structured({"number": number, "state": random.choice(["packed", "sent", "delivered"])})


def place_order(item: str = "", count: int = 1) -> Json:
    nap(0.2, 0.6)
    if random.random() < 0.15:
        return text(f"{item or 'this item'} is sold out", failed=True)
    return structured({"number": random.randint(1000, 9999), "item": item, "count": count})


def cancel_order(number: int = 1) -> Json:
    nap(0.1, 0.3)
    return text(f"order {number} is cancelled")


def search_books(query: str = "", limit: int = 5) -> Json:
    nap(0.02, 0.12)
    if random.random() < 0.03:
        nap(2.0, 3.0)  # a slow shelf
    if random.random() < 0.01:
        print("Segmentation fault in the index", file=sys.stderr, flush=True)
        os._exit(139)
    return text("\n".join(f"{query.title() or 'Untitled'}, volume {index + 1}" for index in range(int(limit))))


def read_page(book: str = "", page: int = 1) -> Json:
    nap(0.01, 0.05)
    return text(f"Page {page} of {book}. " + "It was a dark and stormy night. " * 6)


def charge(card: str = "", amount: float = 1) -> Json:
    nap(0.05, 0.2)
    if random.random() < 0.04:
        print("Traceback: ConnectionResetError: the bank hung up", file=sys.stderr, flush=True)
        os._exit(1)
    return structured({"paid": amount})


def refund(payment: str = "", amount: float = 1) -> Json:
    nap(0.05, 0.1)
    return text("refunds are open from 9 to 5", failed=True)


def sunset(width: int = 160, height: int = 90) -> Json:
    nap(0.02, 0.05)
    width, height = min(int(width), 400), min(int(height), 400)
    rows = [
        b"\0"
        + b"".join(
            bytes((255 - y * 160 // height, 120 + x * 60 // width, 60 + y * 150 // height)) for x in range(width)
        )
        for y in range(height)
    ]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size)
        + chunk(b"IDAT", zlib.compress(b"".join(rows)))
        + chunk(b"IEND", b"")
    )
    return {"content": [{"type": "image", "mimeType": "image/png", "data": base64.b64encode(png).decode()}]}


READ, WRITE, DESTROY = {"readOnlyHint": True}, {"readOnlyHint": False}, {"destructiveHint": True, "readOnlyHint": False}
S: Json
N: Json
S, N = {"type": "string"}, {"type": "integer"}
Tool = tuple[Callable[..., Json], str, Json, Json]
CHARACTERS: dict[str, list[Tool]] = {
    "weather": [
        (forecast, "The weather of the next days in a city.", {"city": S, "days": {**N, "default": 3}}, READ),
        (stations, "The weather stations of a place.", {"near": S}, READ),
    ],
    "shop": [
        (find_order, "How an order stands.", {"number": N}, READ),
        (place_order, "Order something.", {"item": S, "count": {**N, "default": 1}}, WRITE),
        (cancel_order, "Cancel an order, for good.", {"number": N}, DESTROY),
    ],
    "library": [
        (search_books, "Search the titles of all books.", {"query": S, "limit": {**N, "default": 5}}, READ),
        (read_page, "One page of a book.", {"book": S, "page": N}, READ),
    ],
    "payments": [
        (charge, "Charge a card.", {"card": S, "amount": {"type": "number"}}, DESTROY),
        (refund, "Give money back.", {"payment": S, "amount": {"type": "number"}}, DESTROY),
    ],
    "pictures": [(sunset, "Paint a sunset.", {"width": {**N, "default": 160}, "height": {**N, "default": 90}}, READ)],
}


def tools(character: str) -> dict[str, Tool]:
    return {each[0].__name__: each for each in CHARACTERS[character]}


def listed(character: str) -> list[Json]:
    return [
        {
            "name": name,
            "description": words,
            "inputSchema": {"type": "object", "properties": schema},
            "annotations": hints,
        }
        for name, (_, words, schema, hints) in tools(character).items()
    ]


def send(message: Json) -> None:
    with WRITING:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(character: str, id_: Any, params: Json) -> None:
    try:
        result = tools(character)[params["name"]][0](**(params.get("arguments") or {}))
    except (KeyError, TypeError, ValueError) as exc:
        result = text(f"{exc}", failed=True)
    send({"id": id_, "result": result})


def main(character: str) -> None:
    if character == "broken":
        print("Error: CRM_API_KEY is not set", file=sys.stderr, flush=True)
        sys.exit(1)
    for line in sys.stdin:
        message = json.loads(line)
        method, id_, params = message.get("method"), message.get("id"), message.get("params") or {}
        if id_ is None:
            continue
        if method == "initialize":
            info = {"name": f"demo-{character}", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            send({"id": id_, "result": result})
        elif method == "tools/list":
            send({"id": id_, "result": {"tools": listed(character)}})
        elif method == "tools/call":
            threading.Thread(target=call, args=(character, id_, params), daemon=True).start()
        elif method == "ping":
            send({"id": id_, "result": {}})
        else:
            send({"id": id_, "error": {"code": -32601, "message": "not known here"}})


if __name__ == "__main__":
    main(sys.argv[1])

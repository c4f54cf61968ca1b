"""Simulated MCP server over stdio for the demo gateway, with a selectable behavior.

Run by its path; needs only Python.

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

STDOUT_LOCK = threading.Lock()


def text_result(value: str, failed: bool = False) -> Json:
    return {"content": [{"type": "text", "text": value}], **({"isError": True} if failed else {})}


def structured_result(value: Json) -> Json:
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}


def sleep_between(min_s: float, max_s: float) -> None:
    time.sleep(random.uniform(min_s, max_s))


def forecast(city: str = "Lisbon", days: int = 3) -> Json:
    sleep_between(0.01, 0.06)
    weather = ["sun", "rain", "wind", "fog"]
    rows = [{"day": day, "high": random.randint(8, 30), "sky": random.choice(weather)} for day in range(int(days))]
    return structured_result({"city": city, "days": rows})


def stations(near: str = "") -> Json:
    sleep_between(0.005, 0.02)
    return text_result("\n".join(f"{name} {near}".strip() for name in ("airport", "harbour", "old town")))


def find_order(number: int = 1) -> Json:
    sleep_between(0.1, 0.9 if random.random() < 0.2 else 0.3)
    return structured_result({"number": number, "state": random.choice(["packed", "sent", "delivered"])})


def place_order(item: str = "", count: int = 1) -> Json:
    sleep_between(0.2, 0.6)
    if random.random() < 0.15:
        return text_result(f"{item or 'this item'} is sold out", failed=True)
    return structured_result({"number": random.randint(1000, 9999), "item": item, "count": count})


def cancel_order(number: int = 1) -> Json:
    sleep_between(0.1, 0.3)
    return text_result(f"order {number} is cancelled")


def search_books(query: str = "", limit: int = 5) -> Json:
    sleep_between(0.02, 0.12)
    if random.random() < 0.03:
        sleep_between(2.0, 3.0)  # a slow response
    if random.random() < 0.01:
        print("Segmentation fault in the index", file=sys.stderr, flush=True)
        os._exit(139)
    return text_result("\n".join(f"{query.title() or 'Untitled'}, volume {index + 1}" for index in range(int(limit))))


def read_page(book: str = "", page: int = 1) -> Json:
    sleep_between(0.01, 0.05)
    return text_result(f"Page {page} of {book}. " + "It was a dark and stormy night. " * 6)


def charge(card: str = "", amount: float = 1) -> Json:
    sleep_between(0.05, 0.2)
    if random.random() < 0.04:
        print("Traceback: ConnectionResetError: the bank hung up", file=sys.stderr, flush=True)
        os._exit(1)
    return structured_result({"paid": amount})


def refund(payment: str = "", amount: float = 1) -> Json:
    sleep_between(0.05, 0.1)
    return text_result("refunds are open from 9 to 5", failed=True)


def sunset(width: int = 160, height: int = 90) -> Json:
    sleep_between(0.02, 0.05)
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
STRING: Json
INTEGER: Json
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
Tool = tuple[Callable[..., Json], str, Json, Json]
BEHAVIORS: dict[str, list[Tool]] = {
    "weather": [
        (
            forecast,
            "The weather of the next days in a city.",
            {"city": STRING, "days": {**INTEGER, "default": 3}},
            READ,
        ),
        (stations, "The weather stations near a city.", {"near": STRING}, READ),
    ],
    "shop": [
        (find_order, "The state of an order.", {"number": INTEGER}, READ),
        (place_order, "Order something.", {"item": STRING, "count": {**INTEGER, "default": 1}}, WRITE),
        (cancel_order, "Cancel an order permanently.", {"number": INTEGER}, DESTROY),
    ],
    "library": [
        (search_books, "Search the titles of all books.", {"query": STRING, "limit": {**INTEGER, "default": 5}}, READ),
        (read_page, "One page of a book.", {"book": STRING, "page": INTEGER}, READ),
    ],
    "payments": [
        (charge, "Charge a card.", {"card": STRING, "amount": {"type": "number"}}, DESTROY),
        (refund, "Give money back.", {"payment": STRING, "amount": {"type": "number"}}, DESTROY),
    ],
    "pictures": [
        (sunset, "Paint a sunset.", {"width": {**INTEGER, "default": 160}, "height": {**INTEGER, "default": 90}}, READ)
    ],
}


def tools_by_name(behavior: str) -> dict[str, Tool]:
    return {each[0].__name__: each for each in BEHAVIORS[behavior]}


def list_tools(behavior: str) -> list[Json]:
    return [
        {
            "name": name,
            "description": description,
            "inputSchema": {"type": "object", "properties": schema},
            "annotations": hints,
        }
        for name, (_, description, schema, hints) in tools_by_name(behavior).items()
    ]


def send(message: Json) -> None:
    with STDOUT_LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(behavior: str, id_: Any, params: Json) -> None:
    try:
        result = tools_by_name(behavior)[params["name"]][0](**(params.get("arguments") or {}))
    except (KeyError, TypeError, ValueError) as exc:
        result = text_result(f"{exc}", failed=True)
    send({"id": id_, "result": result})


def main(behavior: str) -> None:
    if behavior == "broken":
        print("Error: CRM_API_KEY is not set", file=sys.stderr, flush=True)
        sys.exit(1)
    for line in sys.stdin:
        message = json.loads(line)
        method, id_, params = message.get("method"), message.get("id"), message.get("params") or {}
        if id_ is None:
            continue
        if method == "initialize":
            info = {"name": f"demo-{behavior}", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            send({"id": id_, "result": result})
        elif method == "tools/list":
            send({"id": id_, "result": {"tools": list_tools(behavior)}})
        elif method == "tools/call":
            threading.Thread(target=call, args=(behavior, id_, params), daemon=True).start()
        elif method == "ping":
            send({"id": id_, "result": {}})
        else:
            send({"id": id_, "error": {"code": -32601, "message": "method not found"}})


if __name__ == "__main__":
    main(sys.argv[1])

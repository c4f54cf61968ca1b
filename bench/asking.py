"""One request to a gateway, from here: for what is looked at, not for what is measured by the thousand."""

from __future__ import annotations

import http.client
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

from bench import wire


@dataclass(frozen=True)
class Answer:
    result: dict[str, Any]
    seconds: float
    size: int


def ask(door: wire.Door, method: str, params: dict[str, object]) -> Answer:
    """The answer to a modern client. Raises `OSError`, or `ValueError` where it is no result."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", door.port), 60) as link:
        link.sendall(wire.request(door, "modern", method, params))
        response = http.client.HTTPResponse(link)
        response.begin()
        body = response.read()
    seconds = time.monotonic() - began
    message = json.loads(body)
    if response.status != 200 or "result" not in message:
        raise ValueError(f"{method}: {response.status} {body[:200].decode(errors='replace')}")
    return Answer(message["result"], seconds, len(body))


def pages(door: wire.Door) -> list[Answer]:
    """All pages of `tools/list`."""
    found = [ask(door, "tools/list", {})]
    while cursor := found[-1].result.get("nextCursor"):
        found.append(ask(door, "tools/list", {"cursor": cursor}))
    return found


def tool_names(listed: list[Answer]) -> list[str]:
    return [tool["name"] for page in listed for tool in page.result["tools"]]

"""Single requests to a gateway from Python, for checks that need only a few of them."""

from __future__ import annotations

import http.client
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

from bench import wire


@dataclass(frozen=True)
class TimedResult:
    result: dict[str, Any]
    seconds: float
    size: int


def send_request(endpoint: wire.Endpoint, method: str, params: dict[str, object]) -> TimedResult:
    """Send a request as a modern client and return its result.

    Raises `OSError` if the connection fails and `ValueError` if the response contains no result.
    """
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", endpoint.port), 60) as connection:
        connection.sendall(wire.request(endpoint, "modern", method, params))
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read()
    seconds = time.monotonic() - began
    message = json.loads(body)
    if response.status != 200 or "result" not in message:
        raise ValueError(f"{method}: {response.status} {body[:200].decode(errors='replace')}")
    return TimedResult(message["result"], seconds, len(body))


def list_pages(endpoint: wire.Endpoint) -> list[TimedResult]:
    """Request all pages of `tools/list`."""
    found = [send_request(endpoint, "tools/list", {})]
    while cursor := found[-1].result.get("nextCursor"):
        found.append(send_request(endpoint, "tools/list", {"cursor": cursor}))
    return found


def tool_names(listed: list[TimedResult]) -> list[str]:
    """Return the tool names of all pages."""
    return [tool["name"] for page in listed for tool in page.result["tools"]]

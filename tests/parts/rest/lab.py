"""Requests to the tools of a gateway as a plain HTTP API."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx2

from tests.gateway.edge_lab import TOKEN

Json = dict[str, Any]


async def request(base: str, method: str, path: str, token: str | None = TOKEN, **more: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.request(method, base + path, headers=headers | more.pop("headers", {}), **more)


async def post(
    base: str, tool: str, arguments: Any = None, *, toolset: str = "", token: str | None = TOKEN, **headers: str
) -> httpx2.Response:
    """Call a tool."""
    path = f"/api{f'/{toolset}' if toolset else ''}/tools/{quote(tool, safe='')}"
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return await request(base, "POST", path, token, json=arguments if arguments is not None else {}, headers=fields)


async def get_document(base: str, toolset: str = "", token: str | None = TOKEN) -> Json:
    answer = await request(base, "GET", f"/api{f'/{toolset}' if toolset else ''}/openapi.json", token)
    assert answer.status_code == 200, answer.text
    found: Json = json.loads(answer.content)
    return found


def facts(answer: httpx2.Response) -> tuple[int, str]:
    """Status and `executed` of a failed call."""
    return answer.status_code, answer.json()["executed"]

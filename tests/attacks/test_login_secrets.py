"""Issuers whose token responses would bring secrets into errors and logs."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from toolway import CallError, Hub

pytestmark = pytest.mark.anyio


@pytest.mark.attack("R2-C-2")
@pytest.mark.parametrize(
    "answer",
    [
        b"access_token=AT-of-the-user&token_type=bearer",
        b'{"token_type": "Bearer", "refresh_token": "RT-of-the-user"}',
        b'["AT-of-the-user"]',
        b'{"access_token": {"value": "AT-of-the-user"}, "token_type": "Bearer"}',
    ],
)
async def test_login_error_shows_no_token(answer: bytes) -> None:
    """An issuer that answers in another form than expected, as some do, must not bring tokens into errors and logs."""
    failed = await _login_with(answer)
    assert "the login failed" in failed
    assert "of-the-user" not in failed


@pytest.mark.attack("R2-C-2")
async def test_login_error_shows_no_request_data() -> None:
    failed = await _login_with(b"you sent code-of-the-user", status="303 See Other")
    assert "did not issue a token (303)" in failed
    assert "of-the-user" not in failed


@pytest.mark.attack("R2-C-3")
@pytest.mark.parametrize("token", ["a\\r\\nX-Admin: 1", "a\\u0000b", "", "a b"])
async def test_token_with_invalid_characters_is_rejected_at_login(token: str) -> None:
    """Such a token is refused when the login ends, and not stored: each later start would fail with it."""
    failed = await _login_with(f'{{"access_token": "{token}", "token_type": "Bearer"}}'.encode())
    assert "it returned a token that is empty, or has characters other than visible ASCII" in failed


async def _login_with(answer: bytes, status: str = "200 OK") -> str:
    """The error of a call to a server whose issuer responds to the request for a token with `answer`."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:  # the hub closed before it asked for anything
            writer.close()
            return
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        path = head.split()[1].partition("?")[0]
        own = f"http://127.0.0.1:{port}"
        metadata = {
            "issuer": own,
            "authorization_endpoint": f"{own}/authorize",
            "token_endpoint": f"{own}/token",
            "registration_endpoint": f"{own}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        }
        found: dict[str, tuple[str, Any]] = {
            "/resource": ("200 OK", {"resource": f"{own}/mcp", "authorization_servers": [own]}),
            "/.well-known/oauth-authorization-server": ("200 OK", metadata),
            "/register": (
                "201 Created",
                {**json.loads(body or b"{}"), "client_id": "c"} if path == "/register" else {},
            ),
            "/token": (status, answer),
            "/mcp": ("401 Unauthorized", {}),
        }
        line, content = found.get(path, ("404 Not Found", {}))
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        writer.write(
            f"HTTP/1.1 {line}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n"
            f'WWW-Authenticate: Bearer resource_metadata="{own}/resource"\r\n\r\n'.encode()
            + data
        )
        await writer.drain()
        writer.close()

    async def log_in(server: str, url: str) -> str:
        asked = parse_qs(urlsplit(url).query)
        return f"{asked['redirect_uri'][0]}?code=code-of-the-user&state={asked['state'][0]}"

    listener = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, Hub({"x": f"http://127.0.0.1:{port}/mcp"}, login_callback=log_in, token_store=None) as hub:
        with pytest.raises(CallError) as failed:
            await hub.call_tool("x.t")
        return f"{failed.value} {hub.status()}"

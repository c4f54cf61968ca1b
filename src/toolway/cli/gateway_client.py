"""Client of a running gateway: its address and token, requests to `/admin` and `/login`.

The HTTP client is loaded on the first request: most commands find no gateway and must stay fast.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from toolway._lazy import compile_pattern
from toolway.cli.exit_codes import GatewayAdmin, GatewayDenied, GatewayError, UsageError
from toolway.config.locations import CONFIG_FILE_VARIABLE
from toolway.errors import AccessDenied, ConfigError, NotFound, ToolwayError
from toolway.gateway.state_dir import StateDir
from toolway.types import Json

ADMIN_TIMEOUT_S: Final = 30.0  # seconds to wait for a response of `/admin`
_PING_TIMEOUT_S: Final = 3.0  # seconds to wait for a health check
_MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
_LOOPBACK_FOR_WILDCARD: Final = {
    "0.0.0.0": "127.0.0.1",
    "[::]": "[::1]",
}  # a wildcard listen address cannot be connected to
# A proxy may serve the gateway below a path: https://tools.example/toolway
_GATEWAY_URL: Final = compile_pattern(r"(https?://[\w.:\[\]-]+(?:/[\w.~%-]+)*?)(?:/mcp)?/?")


class GatewayClient:
    """HTTP client of one gateway, for its `/admin` and `/login` paths.

    `config` is the gateway's config file if the gateway runs on this machine.
    """

    def __init__(self, url: str, token: str | None, config: str = "") -> None:
        self.url = url
        self.token = token
        self.config = config

    @property
    def headers(self) -> dict[str, str]:
        """Return the Authorization header for the gateway; empty without a token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def ping(self) -> None:
        """Check that the gateway responds. Raises `GatewayError` if it does not within 3 s."""
        import asyncio

        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                status, _ = await self._exchange("GET", "/healthz", {}, b"")
        except TimeoutError:
            raise _no_response_error(self.url, f"no response within {_PING_TIMEOUT_S:g} s") from None
        if status != 200:
            raise _no_response_error(self.url, f"it responded with status {status}")

    async def request_admin(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send a request to a path below `/admin/` and return the JSON response.

        Raises `GatewayError` if the gateway does not respond within 30 s, or the error in its response.
        """
        return await self._request_json(method, f"/admin/{path}", body)

    async def request_login(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send a request to a path below `/login/`, which every API key may use.

        Returns the JSON response. Raises `GatewayError` if the gateway does not respond within 30 s, or the
        error in its response.
        """
        return await self._request_json(method, f"/login/{path}", body)

    async def request_who(self) -> Json:
        """Return what the gateway knows about the owner of the token. Every key and person may request it.

        Raises `GatewayError` if the gateway does not respond within 30 s, or the error in its response.
        """
        return await self._request_json("GET", "/who", None)

    async def fetch(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        """Send a request with these headers only, and without the token; return status and body.

        Raises `GatewayError` if the gateway does not respond within 30 s.
        """
        import asyncio

        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                return await self._exchange(method, path, headers, b"")
        except TimeoutError:
            raise _no_response_error(self.url, f"no response within {ADMIN_TIMEOUT_S:g} s") from None

    async def _request_json(self, method: str, path: str, body: Json | None) -> Json:
        import asyncio

        from toolway.protocol import jsonrpc

        fields = self.headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                status, data = await self._exchange(
                    method, path, fields, jsonrpc.encode_json(body) if body is not None else b""
                )
        except TimeoutError:
            raise _no_response_error(self.url, f"no response within {ADMIN_TIMEOUT_S:g} s") from None
        try:
            document = jsonrpc.decode_json(data)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise _no_response_error(self.url, f"it responded with status {status} and without a JSON object")
        if status != 200:
            raise _error_from_response(self.url, status, document.get("error"))
        return document

    async def _exchange(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        from toolway.http.client import HttpClient, HttpError, HttpTarget, encode_headers
        from toolway.network.policy import ALLOW_ALL

        client = HttpClient(network_policy=ALLOW_ALL)
        try:
            target, fields = HttpTarget.parse(self.url + path), encode_headers(headers)
            async with client.send(method, target, [fields], body) as response:
                return response.status, await response.read(_MAX_RESPONSE_BYTES)
        except HttpError as exc:
            raise _no_response_error(self.url, exc.reason, exc.hint) from None
        except ValueError as exc:
            raise UsageError("the address or token of the gateway is invalid", detail=str(exc)) from None
        finally:
            client.close()


def gateway_from_url(address: str, token: str | None) -> GatewayClient:
    """Return a client for the gateway at the URL `address`.

    The client has this machine's token if the gateway runs here and `token` is None. Raises `UsageError` if the URL
    is invalid.
    """
    found = _GATEWAY_URL.fullmatch(address)
    if found is None:
        raise UsageError(
            f"invalid gateway address {address!r}",
            hint="write it as http://127.0.0.1:8765 or https://tools.example/toolway",
        )
    local = find_local_gateway(None, token)
    if local is not None and local.url == found[1]:
        return local
    return GatewayClient(found[1], token)


def find_local_gateway(config: Path | None, token: str | None) -> GatewayClient | None:
    """Return a client for the gateway that runs on this machine; None if there is none.

    A gateway that serves another config file than `config` does not count.
    """
    if explain_missing_gateway(config):
        return None
    state = StateDir.default(os.environ)
    running = state.read_running()
    return (
        GatewayClient(_connectable_url(running.url), token or state.read_token(), running.config)
        if running is not None
        else None
    )


def explain_missing_gateway(config: Path | None) -> str:
    """Return the reason why no gateway on this machine can be used; "" if one can."""
    try:
        state = StateDir.default(os.environ)
    except ConfigError as exc:
        return exc.detail
    running = state.read_running()
    if running is None:
        return f"no running gateway is registered in {state.folder}"
    config_path = config or os.environ.get(CONFIG_FILE_VARIABLE)
    if config_path and os.path.realpath(config_path) != os.path.realpath(running.config):
        return (
            f"the one at {running.url} serves {running.config or 'the configuration of its cluster'}, not {config_path}"
        )
    return ""


def _connectable_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, colon, port = rest.rpartition(":")
    return f"{scheme}://{_LOOPBACK_FOR_WILDCARD.get(host, host)}{colon}{port}"


def _no_response_error(url: str, why: str, hint: str = "") -> GatewayError:
    return GatewayError(
        f"the gateway at {url} does not respond", detail=why, hint=hint or "start one with: toolway serve"
    )


def _error_from_response(url: str, status: int, error: Any) -> ToolwayError:
    """Return the exception for an error response of the gateway, by its HTTP status."""
    parts = error if isinstance(error, dict) else {}
    message, detail, hint, code = (str(parts.get(key) or "") for key in ("message", "detail", "hint", "code"))
    if status == 401:
        hint = "pass --token or $TOOLWAY_TOKEN; on the gateway's machine, `toolway keys local-token` shows a token"
        return GatewayDenied(f"the gateway at {url} rejects the token", detail=message, hint=hint)
    if status == 403:
        hint = "use the token of the gateway's machine, or an --admin key; every key may list its tools: toolway tools"
        return GatewayAdmin(f"the gateway at {url} requires an administrator for this", detail=message, hint=hint)
    if status == 404 and code:
        return NotFound(message, detail=detail, hint=hint, code=code)
    if status == 502 and code.startswith("E-AUTH"):
        return AccessDenied(message, detail=detail, hint=hint, code=code)
    if status in (400, 422):
        return ConfigError(message, detail=detail, hint=hint, code=code)
    return GatewayError(f"the gateway at {url} responded with status {status}", detail=message, hint=hint)

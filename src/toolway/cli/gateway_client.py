"""Client of a running gateway: its address, token and config file, requests to `/admin` and `/login`.

The HTTP client is loaded on the first request: most commands find no gateway and must stay fast.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolway.cli.exit_codes import GatewayAdmin, GatewayDenied, GatewayError, UsageError
from toolway.cli.options import TargetOptions
from toolway.config.locations import CONFIG_FILE_VARIABLE, STATE_FOLDER_VARIABLE
from toolway.config.schema import Tls
from toolway.errors import AccessDenied, ConfigError, NotFound, ToolwayError
from toolway.gateway.state_dir import StateDir
from toolway.http.client import HttpClient, HttpError, HttpTarget, encode_headers
from toolway.http.tls import TLS_FILE_CODE
from toolway.network.policy import ALLOW_ALL
from toolway.protocol import jsonrpc
from toolway.types import Json

ADMIN_TIMEOUT_S: Final = 30.0  # seconds to wait for a response of `/admin`
_PING_TIMEOUT_S: Final = 3.0  # seconds to wait for a health check
_MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
_LOOPBACK_FOR_WILDCARD: Final = {
    "0.0.0.0": "127.0.0.1",
    "[::]": "[::1]",
}  # a wildcard listen address cannot be connected to
# A proxy may serve the gateway below a path: https://tools.example/toolway
_GATEWAY_URL: Final = re.compile(r"(https?://[\w.:\[\]-]+(?:/[\w.~%-]+)*?)(?:/mcp)?/?")


class GatewayClient:
    """HTTP client of one gateway, for its `/admin` and `/login` paths.

    `config` is the gateway's config file and `pid` its process if the gateway is registered on this machine;
    `named_file` is the same file if it is not one that commands find without an option. `ca_file` has the certificates
    (PEM) of the CAs to trust instead of the system's.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        config: str = "",
        *,
        named_file: Path | None = None,
        ca_file: Path | None = None,
        pid: int | None = None,
    ) -> None:
        self.url = url
        self.token = token
        self.config = config
        self.named_file = named_file
        self._ca_file = ca_file
        self._pid = pid

    @property
    def tls(self) -> Tls | None:
        """Return the TLS settings of --ca; None for the system's settings."""
        return Tls(ca_file=os.fspath(self._ca_file)) if self._ca_file is not None else None

    @property
    def headers(self) -> dict[str, str]:
        """Return the Authorization header for the gateway; empty without a token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def ping(self) -> None:
        """Check that the gateway responds. Raises `GatewayError` if it does not within 3 s."""
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                status, _ = await self._exchange("GET", "/healthz", {}, b"")
        except TimeoutError:
            raise self._no_response_error(f"no response within {_PING_TIMEOUT_S:g} s") from None
        if status != 200:
            raise self._no_response_error(f"it responded with status {status}")

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
        """Return what the gateway knows about the token's owner. Every key and user may ask.

        Raises `GatewayError` if the gateway does not respond within 30 s, or the error in its response.
        """
        return await self._request_json("GET", "/who", None)

    async def request_document(self, path: str) -> Json:
        """Return the JSON document at a path that every key and user may read.

        Raises `GatewayError` if the gateway does not respond within 30 s, or the error in its response.
        """
        return await self._request_json("GET", path, None)

    async def fetch(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        """Send a request with these headers only, and without the token; return status and body.

        Raises `GatewayError` if the gateway does not respond within 30 s.
        """
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                return await self._exchange(method, path, headers, b"")
        except TimeoutError:
            raise self._no_response_error(f"no response within {ADMIN_TIMEOUT_S:g} s") from None

    async def _request_json(self, method: str, path: str, body: Json | None) -> Json:
        fields = self.headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                status, data = await self._exchange(
                    method, path, fields, jsonrpc.encode_json(body) if body is not None else b""
                )
        except TimeoutError:
            raise self._no_response_error(f"no response within {ADMIN_TIMEOUT_S:g} s") from None
        try:
            document = jsonrpc.decode_json(data)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self._no_response_error(f"it responded with status {status} and without a JSON object")
        if status != 200:
            error = document.get("error", document)
            raise _error_from_response(self.url, status, error, is_local=self._pid is not None)
        return document

    async def _exchange(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        client = HttpClient(network_policy=ALLOW_ALL, tls=self.tls)
        try:
            target, fields = HttpTarget.parse(self.url + path), encode_headers(headers)
            async with client.send(method, target, [fields], body) as response:
                return response.status, await response.read(_MAX_RESPONSE_BYTES)
        except HttpError as exc:
            raise self._connection_error(exc) from None
        except ValueError as exc:
            raise UsageError("the address or token of the gateway is invalid", detail=str(exc)) from None
        finally:
            client.close()

    def _connection_error(self, error: HttpError) -> GatewayError:
        """Return the exception for a request that could not be sent, or has no complete response."""
        if error.code == "E-HTTP-TLS" and "certificate of" in error.reason:
            return GatewayError(
                f"the certificate of the gateway at {self.url} is not trusted",
                detail=error.reason,
                hint="use the host name in the certificate"
                if "ostname mismatch" in error.reason
                else "trust the CA that issued it: --ca FILE, or SSL_CERT_FILE=FILE",
                code=error.code,
            )
        if error.code in (TLS_FILE_CODE, "E-HTTP-TLS"):
            hint = "check the file of --ca" if error.code == TLS_FILE_CODE else error.hint
            return GatewayError(
                f"no TLS connection to the gateway at {self.url}", detail=error.reason, hint=hint, code=error.code
            )
        return self._no_response_error(error.reason, error.hint)

    def _no_response_error(self, why: str, hint: str = "") -> GatewayError:
        if self._pid is not None:
            why = f"{why}; process {self._pid} is registered as this gateway"
            hint = "if it is starting, try again in a moment; to use the config file instead: --no-gateway"
        return GatewayError(
            f"the gateway at {self.url} does not respond", detail=why, hint=hint or "start one with: toolway serve"
        )


def gateway_from_url(options: TargetOptions) -> GatewayClient:
    """Return a client for the gateway of --gateway.

    The client has this machine's token if the gateway runs here and no token is given. Raises `UsageError` if the URL
    is invalid.
    """
    address = options.gateway or ""
    found = _GATEWAY_URL.fullmatch(address)
    if found is None:
        raise UsageError(
            f"invalid gateway address {address!r}",
            hint="use http://127.0.0.1:8765 or https://tools.example/toolway",
        )
    local = find_local_gateway(replace(options, config=None))
    if local is not None and local.url == found[1]:
        return local
    return GatewayClient(found[1], options.token, ca_file=options.ca)


def find_local_gateway(options: TargetOptions) -> GatewayClient | None:
    """Return a client for the gateway that is registered on this machine; None if there is none.

    A gateway that serves another config file than --config does not count.
    """
    if explain_missing_gateway(options.config):
        return None
    state = StateDir.default(os.environ)
    running = state.read_running()
    if running is None:
        return None
    url, token = _connectable_url(running.url), options.token or state.read_token()
    named_file = running.named_file(os.environ, Path.cwd())
    return GatewayClient(url, token, running.config, named_file=named_file, ca_file=options.ca, pid=running.pid)


def require_no_named_state(options: TargetOptions) -> None:
    """Raise `GatewayError` if `$TOOLWAY_STATE` points to an unregistered gateway and no file is given.

    The gateway of that folder may be starting. The servers of the user's own files may be others than its servers.
    """
    if options.no_gateway or options.config is not None or not os.environ.get(STATE_FOLDER_VARIABLE):
        return
    state = StateDir.default(os.environ)
    if state.read_running() is None:
        raise GatewayError(
            f"no gateway is registered in {state.folder}",
            detail=f"{STATE_FOLDER_VARIABLE} names this folder; its gateway may still be starting",
            hint="wait until it is ready, or start it with toolway serve; or use the config file: --no-gateway",
        )


def explain_missing_gateway(config: Path | None) -> str:
    """Return why no gateway on this machine can be used; "" if one can."""
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


def _error_from_response(url: str, status: int, error: Any, *, is_local: bool) -> ToolwayError:
    """Return the exception for an error response of the gateway, by its HTTP status.

    `is_local` tells whether the gateway runs on this machine, whose token it then accepts.
    """
    parts = error if isinstance(error, dict) else {}
    message, detail, hint, code = (str(parts.get(key) or "") for key in ("message", "detail", "hint", "code"))
    if status == 401:
        hint = (
            "remove --token and $TOOLWAY_TOKEN to use this machine's token: toolway keys local-token"
            if is_local
            else "pass an API key, or an access token if the gateway has a login: --token TOKEN or $TOOLWAY_TOKEN"
        )
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

"""A gateway that runs: where it is, what opens it, and how `/admin` is asked.

What asks it is loaded when it is asked: most commands find that none runs, and are to be quick.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from toolway.cli.exits import GatewayAdmin, GatewayDenied, GatewayError, UsageError
from toolway.config.find import VARIABLE
from toolway.errors import ConfigError, Denied, NotFound, ToolwayError
from toolway.gateway.state import State
from toolway.model import Json

PATIENCE: Final = 30.0  # seconds for an answer of `/admin`
_KNOCK: Final = 3.0  # seconds in which a gateway that runs says that it does
_MOST: Final = 64 * 1024 * 1024
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # listened on, but nowhere to go to
_URL: Final = re.compile(r"(https?://[^/?#@\s]+)(?:/mcp)?/?")


class Door:
    """`config` is the file of a gateway of this machine."""

    def __init__(self, url: str, token: str | None, config: str = "") -> None:
        self.url = url
        self.token = token
        self.config = config

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def knock(self) -> None:
        """Raises `GatewayError` where nobody answers."""
        import asyncio

        try:
            async with asyncio.timeout(_KNOCK):
                status, _ = await self._exchange("GET", "/healthz", {}, b"")
        except TimeoutError:
            raise _silent(self.url, f"no answer within {_KNOCK:g} s") from None
        if status != 200:
            raise _silent(self.url, f"it answers with status {status}")

    async def ask(self, method: str, path: str, body: Json | None = None) -> Json:
        """The document at a path of `/admin`. Raises `GatewayError`, or what the gateway says is wrong."""
        return await self._ask(method, f"/admin/{path}", body)

    async def log(self, method: str, path: str, body: Json | None = None) -> Json:
        """The same of `/login`, which is open to every key."""
        return await self._ask(method, f"/login/{path}", body)

    async def _ask(self, method: str, path: str, body: Json | None) -> Json:
        import asyncio

        from toolway.protocol import wire

        fields = self.headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            async with asyncio.timeout(PATIENCE):
                status, data = await self._exchange(
                    method, path, fields, wire.encode(body) if body is not None else b""
                )
        except TimeoutError:
            raise _silent(self.url, f"no answer within {PATIENCE:g} s") from None
        try:
            answer = wire.decode(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _silent(self.url, f"it answers with status {status} and no JSON object")
        if status != 200:
            raise _refusal(self.url, status, answer.get("error"))
        return answer

    async def _exchange(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        from toolway.addresses.policy import ANYWHERE
        from toolway.upstream.transports.http1.client import Client, HttpFault, Target, header_block

        client = Client(addresses=ANYWHERE)
        try:
            target, fields = Target.parse(self.url + path), header_block(headers)
            async with client.send(method, target, [fields], body) as response:
                return response.status, await response.read(_MOST)
        except HttpFault as exc:
            raise _silent(self.url, exc.reason, exc.fix) from None
        except ValueError as exc:
            raise UsageError("the address or the token of the gateway cannot be used", evidence=str(exc)) from None
        finally:
            client.close()


def at_address(address: str, token: str | None) -> Door:
    """The gateway at an address; that of this machine is opened by its own token. Raises `UsageError`."""
    found = _URL.fullmatch(address)
    if found is None:
        raise UsageError(f"{address!r} is no address of a gateway", fix="write it as http://127.0.0.1:8765")
    ours = of_this_machine(None, token)
    if ours is not None and ours.url == found[1]:
        return ours
    return Door(found[1], token)


def of_this_machine(config: Path | None, token: str | None) -> Door | None:
    """The gateway that says it runs here, with the file that is named or whatever file if none is."""
    if why_none_here(config):
        return None
    state = State.default(os.environ)
    running = state.running()
    return Door(_reachable(running.url), token or state.token(), running.config) if running is not None else None


def why_none_here(config: Path | None) -> str:
    """Why no gateway of this machine is meant; nothing where one is."""
    try:
        state = State.default(os.environ)
    except ConfigError as exc:
        return exc.evidence
    running = state.running()
    if running is None:
        return f"none has left word in {state.folder} that it runs"
    named = config or os.environ.get(VARIABLE)
    if named and os.path.realpath(named) != os.path.realpath(running.config):
        return f"the one at {running.url} serves {running.config or 'what its cluster has'}, not {named}"
    return ""


def _reachable(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, colon, port = rest.rpartition(":")
    return f"{scheme}://{_ANYWHERE.get(host, host)}{colon}{port}"


def _silent(url: str, why: str, fix: str = "") -> GatewayError:
    return GatewayError(
        f"the gateway at {url} does not answer", evidence=why, fix=fix or "start one with: toolway serve"
    )


def _refusal(url: str, status: int, said: Any) -> ToolwayError:
    """What the gateway says is wrong, as an error of ours."""
    facts = said if isinstance(said, dict) else {}
    what, evidence, fix, code = (str(facts.get(key) or "") for key in ("what", "evidence", "fix", "code"))
    if status == 401:
        fix = "give it with --token or $TOOLWAY_TOKEN; on its own machine `toolway token` shows one"
        return GatewayDenied(f"the gateway at {url} refuses this token", evidence=what, fix=fix)
    if status == 403:
        fix = "use the token of its own machine, or a key made with --admin"
        return GatewayAdmin(f"the gateway at {url} keeps this for administrators", evidence=what, fix=fix)
    if status == 404 and code:
        return NotFound(what, evidence=evidence, fix=fix, code=code)
    if status == 502 and code.startswith("E-AUTH"):
        return Denied(what, evidence=evidence, fix=fix, code=code)
    if status in (400, 422):
        return ConfigError(what, evidence=evidence, fix=fix, code=code)
    return GatewayError(f"the gateway at {url} answers with status {status}", evidence=what, fix=fix)

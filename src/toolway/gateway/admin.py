"""`/admin`: everything that the command line shows, as JSON, for administrators alone.

What can start a process is here and nowhere else. Lists are plain documents; a change says what it changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from toolway._version import __version__
from toolway.config.entries import read_entry
from toolway.config.mask import masker
from toolway.errors import CallError, ConfigError, NotFound, ToolwayError
from toolway.events import Access, Decided
from toolway.gateway import shown
from toolway.gateway.admission import objection, of_stranger
from toolway.gateway.desk import Desk
from toolway.gateway.door import problem
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import EVENTS, JSON
from toolway.gateway.principals import ApiKey, KnownKeys, Principal
from toolway.gateway.rates import Rate
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol import wire
from toolway.upstream.status import Status

_FIELDS: Final = (("content-type", JSON), ("cache-control", "no-store"))


class ClusterDesk(Protocol):
    """What a gateway knows of the others, where it is not alone."""

    async def answer(self, method: str, parts: list[str], body: Json) -> Json | None: ...

    async def owners(self) -> Mapping[str, Sequence[str]]:
        """The nodes that own each server, as far as it can be known."""
        ...

    def restart(self, server: str) -> None:
        """Let whoever owns a server start it again."""
        ...


class Admin:
    """`commands` are those that a server may have which is added here."""

    def __init__(
        self,
        hub: Hub,
        keyring: KnownKeys | None,
        commands: Callable[[], Collection[str]],
        reload: Callable[[], Awaitable[Json]],
        facts: Callable[[], Json],
        desk: Desk,
    ) -> None:
        self._hub = hub
        self._keyring = keyring
        self._commands = commands
        self._reload = reload
        self._facts = facts
        self._desk = desk
        self.cluster: ClusterDesk | None = None

    async def handle(self, exchange: Exchange, principal: Principal) -> None:
        if not principal.admin:
            exchange.reply(*problem(403, "this is for administrators", fix="use the token of this machine"))
            return
        request = exchange.request
        parts = request.path.split("/")[2:]  # one spelling of every route
        try:
            body = wire.decode(request.body) if request.body else {}
            if not isinstance(body, dict):
                raise ValueError("an object is expected")
            if parts == ["events"] and request.headers.get("accept") == EVENTS:
                await self._desk.follow(exchange)
                return
            answer = await self._answer(request.method, parts, body)
            if answer is None:
                answer = await self._desk.answer(request.method, parts, body, request.query, principal)
                if self.cluster is not None and answer is not None:
                    await _say_owners(self.cluster, parts, answer)
        except ValueError as exc:
            exchange.reply(*problem(400, f"the request cannot be read: {exc}"))
        except NotFound as exc:
            exchange.reply(*_of_error(404, exc))
        except ConfigError as exc:
            exchange.reply(*_of_error(422, exc))
        except OSError as exc:
            exchange.reply(*problem(507, f"the keys cannot be kept: {exc.strerror or exc}"))
        except CallError as exc:
            exchange.reply(*_of_error(502, exc))
        else:
            if answer is None:
                exchange.reply(*problem(404, "there is nothing at this path", paths=_PATHS))
            else:
                exchange.reply(200, wire.encode(answer), _FIELDS)

    async def _answer(self, method: str, parts: list[str], body: Json) -> Json | None:
        match method, parts:
            case "GET", []:
                return {**self._facts(), "version": __version__, "pid": os.getpid(), "paths": _PATHS}
            case "GET", ["servers"]:
                owners = await self.cluster.owners() if self.cluster is not None else {}
                return {"servers": [self._shown(status, owners) for status in self._hub.status().values()]}
            case "GET", ["servers", name]:
                owners = await self.cluster.owners() if self.cluster is not None else {}
                return self._shown(self._status(name), owners)
            case "GET", ["tools"]:
                return {"tools": [_tool(tool) for tool in self._hub.tools()]}
            case "POST", ["servers", name, "restart"]:
                self._hub.restart(name)
                if self.cluster is not None:
                    self.cluster.restart(name)
                return {"restarting": name}
            case "PUT", ["servers", name]:
                self._must_be_alone()
                return await self._put_server(name, body)
            case "DELETE", ["servers", name]:
                self._must_be_alone()
                await self._hub.remove(name)
                return {"removed": name}
            case "POST", ["servers", _, "enable" | "disable"]:
                self._must_be_alone()
            case "POST", ["reload"]:
                return await self._reload()
            case _, ["keys", *rest]:
                return await self._keys(method, rest, body)
            case _, ["nodes", *_]:
                return await self._of_cluster(method, parts, body)
        return None

    async def _of_cluster(self, method: str, parts: list[str], body: Json) -> Json | None:
        if self.cluster is None:
            raise ConfigError(
                "this gateway is alone",
                evidence="it was started without --cluster",
                fix="start it as one of several: toolway serve --cluster nats://HOST:4222 --database postgresql://…",
                code="E-CLUSTER-NONE",
            )
        return await self.cluster.answer(method, parts, body)

    def _must_be_alone(self) -> None:
        """What is added to one gateway until its next reload would be unknown to the others."""
        if self.cluster is not None:
            raise ConfigError(
                "the servers of a cluster are those of its file",
                evidence="a change here would be one of this gateway alone",
                fix="change the file of any of its gateways: all take what it says",
                code="E-CLUSTER-FILE",
            )

    def _shown(self, status: Status, owners: Mapping[str, Sequence[str]]) -> Json:
        servers = self._hub.servers
        facts = shown.status(status, masker([servers[status.server]] if status.server in servers else []))
        _place(facts, owners)
        return facts

    def _status(self, name: str) -> Status:
        found = self._hub.status().get(name)
        if found is None:
            raise NotFound(f"there is no server {name!r}", server=name)
        return found

    async def _put_server(self, name: str, body: Json) -> Json:
        """Add or change a server until the next reload; nothing is taken from our own environment."""
        entry, problems = read_entry(body, {})
        server = of_stranger(entry)
        why_not = objection(server, self._commands(), self._hub.addresses)
        self._hub.emit(Decided(name, "admission", why_not is None, why_not or ""))
        if why_not is not None:
            raise ConfigError(
                f"the server {name!r} is not taken",
                evidence=why_not,
                fix="write it into the file of servers, or allow it there: toolway.gateway.commands, toolway.addresses",
                code="E-ADMISSION",
            )
        if name in self._hub.servers:
            await self._hub.replace(name, server)
        else:
            await self._hub.add(name, server)
        return {"server": name, "problems": [str(each.what) for each in problems]}

    # -- keys ---------------------------------------------------------------------------------------------------------

    async def _keys(self, method: str, rest: list[str], body: Json) -> Json | None:
        if self._keyring is None:
            raise ConfigError("this gateway asks nobody for a token", fix="start it without --no-auth")
        match method, rest:
            case "GET", []:
                return {"keys": [_key(key) for key in self._keyring.all()]}
            case "POST", []:
                token, key = await self._keyring.issue(
                    _text(body, "name"), _scopes(body), body.get("admin") is True, time.time(), _rate(body)
                )
                self._hub.emit(Access("", "key_created", who=key.id))
                return {**_key(key), "token": token}
            case "DELETE", [id_]:
                if not await self._keyring.withdraw(id_):
                    raise NotFound(f"there is no key {id_!r}", fix="see them all: toolway keys ls")
                self._hub.emit(Access("", "key_revoked", who=id_))
                return {"revoked": id_}
        return None


_PATHS: Final = [
    "GET /admin/servers",
    "GET|PUT|DELETE /admin/servers/<name>",
    "POST /admin/servers/<name>/restart",
    "GET /admin/tools",
    "GET|POST /admin/keys",
    "DELETE /admin/keys/<id>",
    "POST /admin/reload",
    "GET /admin/overview",
    "GET /admin/servers/<name>/detail",
    "POST /admin/servers/<name>/enable|disable",
    "GET /admin/calls",
    "GET /admin/calls/<id>",
    "POST /admin/calls/<id>/replay",
    "POST /admin/call",
    "GET /admin/events",
    "GET /admin/matters",
    "DELETE /admin/matters/<name>",
    "GET /admin/catalog",
    "GET /admin/tools/<server>/<tool>",
    "GET /admin/breakers",
    "POST /admin/breakers/<server>[/<tool>]/trip|reset",
    "GET /admin/groups",
    "GET /admin/config",
    "GET /admin/config/diff/<version>",
    "POST /admin/config/rollback/<version>",
    "POST /admin/doctor",
    "POST /admin/links",
    "GET /admin/nodes[/<id>]",
    "POST /admin/nodes/<id>/drain",
]


async def _say_owners(cluster: ClusterDesk, parts: list[str], answer: Json) -> None:
    """Which nodes own the servers of an answer that people look at."""
    match parts:
        case ["overview"]:
            rows, answer["cluster"] = answer["servers"], True
        case ["servers", _, "detail"]:
            rows = [answer["status"]]
        case _:
            return
    owners = await cluster.owners()
    for row in rows:
        _place(row, owners)


def _place(facts: Json, owners: Mapping[str, Sequence[str]]) -> None:
    facts["nodes"] = nodes = owners.get(facts["server"], ())
    if nodes and facts["state"] == "idle":  # here, where it need not run
        facts["why"] = "runs at its owner: the way there is opened with the first call"


def _tool(tool: Any) -> Json:
    return {
        "name": tool.name,
        "model_name": tool.model_name,
        "server": tool.server,
        "title": tool.title,
        "description": tool.description,
        "raw": tool.raw,
    }


def _key(key: ApiKey) -> Json:
    rate = str(key.rate) if key.rate is not None else None
    facts = {"id": key.id, "name": key.name, "scopes": key.scopes, "admin": key.admin, "created": key.created}
    return {**facts, "rate": rate}


def _text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        raise ValueError(f"{name} must be a text of 1 to 100 characters")
    return value


def _scopes(body: Json) -> list[str] | None:
    value = body.get("scopes")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("scopes must be a list of names")
    return value


def _rate(body: Json) -> Rate | None:
    value = body.get("rate")
    return Rate.parse(str(value)) if value is not None else None


def _of_error(status: int, error: ToolwayError) -> tuple[int, bytes, Any]:
    return problem(status, error.what, evidence=error.evidence, fix=error.fix, code=error.code)

"""Startup of a cluster node: check dependencies, load settings, wait for the database, find our address.

A node that starts without a configuration file loads the gateway settings from the database (`load_initial_config`):
audit, telemetry and the address are fixed when a gateway is created, and must be known then. The servers are loaded
later, as on all nodes (`node.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar
from urllib.parse import urlsplit

from toolway.cluster.db.config_store import ConfigStore
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.options import ADVERTISE_NONE, ClusterOptions, option_error
from toolway.cluster.replication.config import parse_document
from toolway.config.loader import SERVER_MAP_KEYS, TOOLWAY_BLOCK, LoadedConfig
from toolway.errors import ServerUnavailable, ToolwayError
from toolway.gateway.authenticator import json_error
from toolway.gateway.sealing import Sealer
from toolway.http.exchange import JSON_TYPE, Exchange, HttpRequest
from toolway.http.server import HttpServer
from toolway.http.server_connection import Rejection
from toolway.secrets.detection import mask_secrets

DATABASE_RETRY_INTERVAL_S: Final = 1.0  # seconds between two attempts
LOG_REPEAT_INTERVAL_S: Final = 60.0  # seconds after which the same error is logged again

_MAX_DETAIL_CHARS: Final = 300  # characters of the original error text
_PROBE_PORT: Final = 9  # of the connected UDP socket; nothing is sent to it
_WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})

T = TypeVar("T")
log = logging.getLogger("toolway.cluster")


async def load_initial_config(options: ClusterOptions) -> LoadedConfig | None:
    """Return the gateway settings stored in the cluster database, without servers.

    Return None if the cluster was never configured. Raises `ServerUnavailable` if the database does not respond,
    `ConfigError` if its schema or content is not usable.
    """
    engine = open_engine(options.database_url)
    try:
        with reporting_database_errors():
            await upgrade_schema(engine)
            sealer, integrity = Sealer(options.tenant_key, time.time), Integrity(options.tenant_key)
            found = await ConfigStore(engine, sealer, integrity).load_settings(options.tenant)
    finally:
        await engine.dispose()
    return parse_document({SERVER_MAP_KEYS[0]: {}, TOOLWAY_BLOCK: found}, "") if found is not None else None


# -- wait for the database --------------------------------------------------------------------------------------------


async def wait_for_database(
    connect: Callable[[], Awaitable[T]], stop: asyncio.Event, host: str, port: int, tls: ssl.SSLContext | None
) -> T:
    """Call `connect` until the database responds, and return its result.

    Waits forever: if every node gave up while the database was down, none would be left when it recovers. Until then,
    a minimal HTTP server answers health probes on the gateway's port: alive, but not ready.

    Raises `ServerUnavailable` if `stop` is set before the database responds, and any other error of `connect` at once.
    """
    server: HttpServer | None = None
    logged_error, logged_at = "", 0.0
    now = asyncio.get_running_loop().time
    try:
        while True:
            try:
                return await connect()
            except ServerUnavailable as exc:
                if str(exc) != logged_error or now() >= logged_at + LOG_REPEAT_INTERVAL_S:
                    logged_error, logged_at = str(exc), now()
                    log.warning("not ready, waiting: %s", exc)
                if stop.is_set():
                    raise
            if server is None:
                server = await _start_probe_server(host, port, tls)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), DATABASE_RETRY_INTERVAL_S)
    finally:
        if server is not None:
            await server.close(1.0)


async def _start_probe_server(host: str, port: int, tls: ssl.SSLContext | None) -> HttpServer:
    """Start an HTTP server for health probes on the future gateway's port.

    With port 0 no client can know the port, so the server does not listen.
    """
    server = HttpServer(_handle_request, authenticate_head=_not_ready_response)
    if port:
        with suppress(OSError):  # the gateway itself will report it
            await server.listen(host, port, tls)
    return server


async def _handle_request(exchange: Exchange) -> None:
    """Answer `/healthz` with 200 (alive), and everything else, including `/readyz`, with 503 (not ready)."""
    if exchange.request.path == "/healthz":
        exchange.reply(200, b'{"ok":true}', (("content-type", JSON_TYPE),))
    elif exchange.request.path == "/readyz":
        exchange.reply(503, b'{"ok":false}', (("content-type", JSON_TYPE),))
    else:
        exchange.reply(*_not_ready_response(exchange.request))


def _not_ready_response(request: HttpRequest) -> Rejection:
    message = "gateway is waiting for the cluster database"
    status, body, fields = json_error(503, message, hint="retry, or use another gateway", code="E-RECORD")
    return status, body, (*fields, ("retry-after", "1"))


# -- own address ------------------------------------------------------------------------------------------------------


def detect_address(options: ClusterOptions, host: str, port: int, *, tls: bool) -> str:
    """Return the URL at which other nodes reach this gateway, or "" if they need NATS.

    The gateway listens at `host` and `port`. Without --advertise, its host is the local address from which this
    machine reaches NATS, or the database if NATS is not reachable. If NATS is on another machine, a gateway that only
    listens on loopback is called over NATS: a laptop can share its servers without an option for that.

    May resolve host names, so call it in a thread. Raises `ConfigError`.
    """
    if options.advertise_url is not None:
        return options.advertise_url
    found = _reachable_host(host, (*options.nats_urls, options.database_url))
    if found and tls and _is_ip_address(found):
        raise option_error(
            "TLS certificate cannot be verified for an IP address",
            f"the gateway listens with TLS at {found}",
            f"advertise the host name of its certificate: --advertise https://NAME:{port}",
        )
    return f"{'https' if tls else 'http'}://{f'[{found}]' if ':' in found else found}:{port}" if found else ""


def _reachable_host(host: str, urls: Sequence[str]) -> str:
    if host not in _WILDCARD_HOSTS and not _is_loopback(host):
        return host
    own = _own_ip_address(urls)
    if host in _WILDCARD_HOSTS:
        return own
    return host if _is_loopback(own) else ""


def _own_ip_address(urls: Sequence[str]) -> str:
    """Return the IP address of this machine on the route to the first reachable host of `urls`.

    It is read from a connected UDP socket; nothing is sent. Raises `ConfigError` if no host is reachable.
    """
    for name in filter(None, (urlsplit(url).hostname for url in urls)):
        with suppress(OSError, UnicodeError):
            for family, kind, protocol, _, target in socket.getaddrinfo(name, _PROBE_PORT, type=socket.SOCK_DGRAM):
                with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                    probe.connect(target)
                    return str(probe.getsockname()[0])
    raise option_error(
        "cannot detect this node's address",
        "neither a NATS server of --cluster nor the database has a reachable address",
        f"set it: --advertise http://HOST:8765, or --advertise {ADVERTISE_NONE} if other nodes cannot reach it",
    )


def _is_ip_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


# -- errors of dependencies -------------------------------------------------------------------------------------------


@contextmanager
def reporting_database_errors() -> Iterator[None]:
    """Convert database errors inside the `with` block into `ServerUnavailable`; Toolway's own errors stay unchanged."""
    try:
        yield
    except ToolwayError:
        raise
    except Exception as exc:
        raise database_unavailable(exc) from None


def database_unavailable(exc: BaseException) -> ServerUnavailable:
    """Return the error for a cluster database that does not respond as expected."""
    return ServerUnavailable(
        "cluster database unavailable",
        detail=_error_detail(exc),
        hint="check that PostgreSQL is running at the --database URL and accepts this user: psql URL",
        code="E-RECORD",
    )


def nats_unavailable(exc: BaseException) -> ServerUnavailable:
    """Return the error for unreachable NATS servers; it is only logged.

    Without NATS, a node keeps running and finds changes by polling the database.
    """
    return ServerUnavailable(
        "NATS unavailable",
        detail=_error_detail(exc),
        hint="check that NATS is running at the --cluster URL and accepts this login: nats server check connection",
        code="E-NATS",
    )


def _error_detail(exc: BaseException) -> str:
    """Return a database or NATS error as one line, with passwords masked.

    For a SQLAlchemy error, that is the driver's error inside.
    """
    cause = getattr(exc, "orig", None) or exc
    text = " ".join(str(cause).split()) or type(cause).__name__
    return mask_secrets(text)[:_MAX_DETAIL_CHARS]

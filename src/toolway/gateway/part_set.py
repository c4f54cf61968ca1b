"""Opens a gateway's parts in order, gives them what they need, applies their settings, and closes them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolway.config.settings import AlertSettings
from toolway.gateway.caller_paths import CallerPaths
from toolway.gateway.credentials import Credentials
from toolway.gateway.limits import CallLimits
from toolway.gateway.meta_tools import MetaTools
from toolway.gateway.permissions import Permissions
from toolway.gateway.principals import ApiKeyStore
from toolway.gateway.sealing import KEY_BYTES
from toolway.hub.core import HubCore
from toolway.middleware.approval import CheckedGate
from toolway.part_api import registry
from toolway.part_api.part import CallerRights, GatewayPlace, Gauge, Part, PartRuntime

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig
    from toolway.config.schema import ConfigIssue, Server
    from toolway.config.settings import GatewaySettings
    from toolway.gateway.cluster_hooks import WorkerReport
    from toolway.gateway.sealing import Sealer
    from toolway.part_api.database import Database
    from toolway.types import Json

R = TypeVar("R", bound=PartRuntime)
OpenDatabase = Callable[[Part], "Database | None"]
_ALONE: Final = GatewayPlace()
_NO_RIGHTS: Final = CallerRights(lambda *_: False, lambda *_: False, lambda _: None)
_log = logging.getLogger("toolway.gateway")


class PartSet:
    """All of a gateway's parts, and their `PartContext`.

    `key` is the gateway's key; without it, parts get a random one. `open_database` returns a part's database; without
    it, and without a folder in `place`, parts store nothing. The gateway is created later, and then sets `rights`,
    `report`, and `worker_reports`.
    """

    def __init__(
        self,
        hub: HubCore,
        api_keys: ApiKeyStore | None,
        *,
        key: bytes | None = None,
        open_database: OpenDatabase = lambda part: None,
        node_count: Callable[[], int] = lambda: 1,
        config_file: Callable[[], str] = lambda: "",
        gateway_url: Callable[[], str] = lambda: "",
        place: GatewayPlace = _ALONE,
        alerts: AlertSettings | None = None,
        parts: Iterable[Part] | None = None,
    ) -> None:
        self.hub = hub
        self.api_keys = api_keys
        self.gate: CheckedGate | None = None
        self.limits = CallLimits()
        self.permissions = Permissions()
        self.meta_tools = MetaTools()
        self.caller_paths = CallerPaths()
        self.credentials = Credentials()
        self.sealer: Sealer | None = None  # set by the gateway
        self.node_count = node_count
        self.config_file = config_file
        self.gateway_url = gateway_url
        self._key = key if key is not None else secrets.token_bytes(KEY_BYTES)
        self.open_database = open_database
        self.place = place
        self.alerts = alerts or AlertSettings()
        self.servers_lock = asyncio.Lock()
        self.rights = _NO_RIGHTS
        self.report: Callable[[str], None] = lambda text: None
        self.worker_reports: Callable[[], Iterable[WorkerReport]] = tuple
        self._configured: set[str] = set()
        self._parts: dict[str, tuple[Part, PartRuntime]] = {}
        for part in _in_order(parts if parts is not None else registry.built_in()):
            self._parts[part.name] = (part, part.open(self))
        #: Names of the servers that parts may have in this process.
        self.server_names = frozenset(name for part, _ in self for name in part.server_names)

    def __iter__(self) -> Iterator[tuple[Part, PartRuntime]]:
        return iter(self._parts.values())

    def in_use(self) -> list[str]:
        """Return the names of the parts that the configuration uses, sorted."""
        return sorted(self._configured.intersection(self._parts))

    def set_gate(self, gate: CheckedGate) -> None:
        """Let `gate` decide on each of the hub's calls before it is sent. Call this before the hub is opened.

        Raises `LookupError` if another part already decides.
        """
        if self.gate is not None:
            raise LookupError("another part already decides about calls")
        self.gate = gate
        self.hub.calls.use_gate(gate)

    def derive_key(self, part: Part) -> bytes:
        """Return a part's secret. Neither the gateway's key nor other secrets can be derived from it."""
        return hmac.digest(self._key, f"secret of the part {part.name}".encode(), "sha256")

    def runtime(self, name: str, kind: type[R]) -> R:
        """Return a part's runtime. Raises `LookupError` if it is missing or has another class."""
        runtime = self._parts[name][1]
        if not isinstance(runtime, kind):
            raise LookupError(f"the part {name} is not a {kind.__name__}")
        return runtime

    def start(self, settings: Mapping[str, Any]) -> None:
        """Use the first settings, given by part name. Raises `ConfigError` to stop the gateway from starting."""
        self._configured = {name for name, each in settings.items() if each is not None}
        for part, runtime in self:
            runtime.start(settings.get(part.name))

    async def prepare(self) -> None:
        """Get all parts ready before the gateway listens. Raises `ConfigError` to stop it from starting."""
        for _, runtime in self:
            await runtime.prepare()

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` if a part cannot use its new settings, given by part name. Nothing is applied."""
        for part, runtime in self:
            runtime.check(settings.get(part.name))

    def apply(self, settings: Mapping[str, Any]) -> None:
        """Use these settings, given by part name, from now on. Call this before applying the server entries."""
        self._configured = {name for name, each in settings.items() if each is not None}
        for part, runtime in self:
            runtime.apply(settings.get(part.name))

    async def load(self, config: LoadedConfig) -> None:
        """Let all parts read the files that a configuration names. Call this before applying its server entries."""
        for _, runtime in self:
            await runtime.load(config)

    async def begin(self, config: LoadedConfig) -> None:
        """Let all parts start working, after the hub has started and before clients are served."""
        for _, runtime in self:
            await runtime.begin(config)

    def with_servers(self, servers: Mapping[str, Server]) -> dict[str, Server]:
        """Add the parts' in-process servers to the server entries. Configured servers win."""
        own = {name: each for _, runtime in self for name, each in runtime.servers().items() if name not in servers}
        return {**servers, **own}

    @property
    def issues(self) -> list[ConfigIssue]:
        """Return current problems with files that parts' settings name."""
        return [each for _, runtime in self for each in runtime.issues]

    def stamps(self, gateway: GatewaySettings) -> list[object]:
        """Return values that change when a file named in a part's settings changes."""
        return [each for _, runtime in self for each in runtime.stamps(gateway)]

    def on_servers_changed(self) -> None:
        """Tell all parts that the server entries were applied."""
        for _, runtime in self:
            runtime.on_servers_changed()

    async def reload(self, settings: Mapping[str, Any]) -> list[str]:
        """Make all parts reread their files after a reload. Return the problems."""
        return [each for part, runtime in self for each in await runtime.reload(settings.get(part.name))]

    async def run(self) -> None:
        """Run all parts' background work until cancelled. A failing part does not stop the others."""
        await asyncio.gather(*(self._run(part, runtime) for part, runtime in self))

    async def _run(self, part: Part, runtime: PartRuntime) -> None:
        try:
            await runtime.run()
        except Exception:
            _log.exception("the part %s ended its work in the background", part.name)

    def gauges(self) -> Iterator[Gauge]:
        """Yield all parts' values for `/metrics`. Parts that fail are left out."""
        for part, runtime in self:
            try:
                yield from [each for each in runtime.gauges() if each.name in part.metrics]
            except Exception:
                _log.exception("the part %s has no metrics", part.name)

    async def read_gauges(self) -> list[Gauge]:
        """Return all parts' values for `/metrics`, including those read from databases."""
        found = list(self.gauges())
        for part, runtime in self:
            try:
                found += [each for each in await runtime.read_gauges() if each.name in part.metrics]
            except Exception:
                _log.exception("the part %s lacks some metrics", part.name)
        return found

    def status(self) -> dict[str, Json]:
        """Return what parts report in `GET /admin`, by part name."""
        return {part.name: runtime.status() for part, runtime in self if part.status_schema}

    def own_reports(self) -> dict[str, Json]:
        """Return what this worker's parts report to the machine's first worker, by part name."""
        return {part.name: report for part, runtime in self if (report := runtime.worker_report())}

    def reports_of_workers(self, part: Part) -> list[Json]:
        return [each.parts[part.name] for each in self.worker_reports() if part.name in each.parts]

    def drain(self) -> None:
        """Stop all parts from starting new work, because the gateway is shutting down."""
        for part, runtime in self:
            try:
                runtime.drain()
            except Exception:
                _log.exception("the part %s continues its work", part.name)

    async def finish(self, timeout: float) -> None:
        """Let all parts finish their work, within `timeout` seconds each, before the servers are closed."""
        for part, runtime in reversed(self._parts.values()):
            try:
                await runtime.finish(timeout)
            except Exception:
                _log.exception("the part %s did not finish its work", part.name)

    async def close(self) -> None:
        """Close all parts in reverse order."""
        for part, runtime in reversed(self._parts.values()):
            try:
                await runtime.close()
            except Exception:
                _log.exception("the part %s was not closed", part.name)


def file_database(folder: Path) -> OpenDatabase:
    """Return a function that opens a part's database file in the state folder."""

    def open_database(part: Part) -> Database:
        from toolway.part_api.database import SqliteDatabase

        return SqliteDatabase(folder / part.table_file, part)

    return open_database


def _in_order(parts: Iterable[Part]) -> list[Part]:
    """Sort the parts so each comes after the parts it needs. Raises `LookupError` if one is missing."""
    left, ordered = {part.name: part for part in parts}, dict[str, Part]()

    def add(name: str) -> None:
        if name not in ordered:
            part = left.pop(name)
            for other in part.needs:
                add(other)
            ordered[name] = part

    while left:
        add(next(iter(left)))
    return list(ordered.values())

"""Declaration of a part (`Part`), its life in a gateway (`PartRuntime`), and what the gateway gives it (`PartContext`).

The module of a `Part` must be cheap: `toolway --help` imports it. `Part.code` names all that does work.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from toolway.config.loader import LoadedConfig
    from toolway.config.schema import ConfigIssue, Server
    from toolway.config.settings import AlertSettings, GatewaySettings
    from toolway.doctor.report import Check, SubjectReport
    from toolway.gateway.admin.routes import Route
    from toolway.gateway.credentials import Credentials, CredentialVerifier
    from toolway.gateway.limits import CallLimits
    from toolway.gateway.meta_tools import MetaTools
    from toolway.gateway.permissions import Permissions
    from toolway.gateway.principals import ApiKeyStore, Principal
    from toolway.gateway.sealing import Sealer
    from toolway.hub.core import HubCore
    from toolway.middleware.approval import CheckedGate
    from toolway.part_api.database import Database, Table
    from toolway.types import Json

R = TypeVar("R", bound="PartRuntime")


class Command:
    """One command of the command line: its help line, and its function as `module:function`, or its subcommands."""

    __slots__ = ("after", "function", "help", "is_offline", "options", "section", "subcommands")

    def __init__(
        self,
        help: str,
        function: str = "",
        *,
        subcommands: Mapping[str, Command] | None = None,
        section: str = "Gateway",
        after: str = "",
        is_offline: bool = False,
        options: Sequence[str] | None = None,
    ) -> None:
        self.help = help
        self.function = function
        self.subcommands = subcommands
        self.section = section  # of `toolway help --all`
        self.after = after  # command that it follows there; "": the last one of its section
        self.is_offline = is_offline  # it reads config files alone, and accepts no options for a gateway
        self.options = options  # global options that it accepts besides those for output; None: as `is_offline` says


class KeyAttribute:
    """Attribute of API keys that a part adds: a limit, which is stored with the key.

    A key with an attribute that no part knows is refused: its limit would not be enforced.
    """

    schema: ClassVar[Json] = {}  # of a key in the admin API
    empty: ClassVar[Any] = None  # shown for a key without it
    option: ClassVar[str] = ""  # of `toolway keys create`; "" = none
    option_type: ClassVar[Any] = str
    metavar: ClassVar[str] = ""
    help: ClassVar[str] = ""

    def read(self, value: Any) -> Any:
        """Return a given value as it is stored: JSON. None if it restricts nothing. Raises `ValueError`."""
        raise NotImplementedError

    def show(self, stored: Any) -> Any:
        """Return a stored value as the admin API shows it."""
        return stored

    def describe(self, shown: Any) -> list[str]:
        """Return a shown value in words."""
        return [str(shown)]


class Metric(NamedTuple):
    """A metric of a part, which is read when `/metrics` is asked for."""

    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"  # a counter only grows; its name at `/metrics` ends with _total


class CallerRights(NamedTuple):
    """Rights of principals at a gateway as they are now, for work that continues without a request of theirs."""

    may_call: Callable[[Principal, str, Json | None], bool]  # a tool, with these arguments; None: with none
    may_see: Callable[[Principal, str], bool]  # a tool in a list
    find_person: Callable[[str], Principal | None]  # a user's principal as of the last login, by id


class GatewayPlace(NamedTuple):
    """Place of a gateway among the processes that serve it, with what they share."""

    folder: Path | None = None  # state folder of this machine; None: this gateway stores nothing
    open_store: Callable[[Part], Any] = lambda part: None  # opens `Part.cluster_store`; it may raise `ConfigError`
    is_first: Callable[[], bool] = lambda: True  # of all nodes: the one that reports what concerns all
    is_first_worker: bool = True  # of this machine: the one that does work that only one of them may do


class Gauge(NamedTuple):
    """Current value of one metric of a part, with its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = MappingProxyType({})


class Implied(NamedTuple):
    """Meaning of a part's settings for the whole gateway."""

    url: str = ""  # under which users reach it, without a slash at the end
    public_reason: str = ""  # why it counts as public, for human readers; "" if the part does not make it public
    access: Mapping[str, Sequence[str]] = MappingProxyType({})  # group of users → patterns of the tools it may use


class Part:
    """A feature of a gateway. Subclass it, and name the subclass in `registry.py` or by an entry point.

    Name what does its work in `code`, or override a method. Each may be the first that is called, so a method imports
    what it needs.
    """

    name: ClassVar[str]
    #: Methods below → `module:attribute` in the part's package: a function with the same parameters, or the value.
    code: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[tuple[str, ...]] = ()  # parts that are opened before this one, and whose runtimes it may use
    setting_keys: ClassVar[tuple[str, ...]] = ()  # keys of the `toolway` block that are its own
    gateway_keys: ClassVar[tuple[str, ...]] = ()  # keys of the block `toolway.gateway`
    setting_prefixes: ClassVar[tuple[str, ...]] = ()  # other keys with such a beginning are misspelt: they are errors
    commands: ClassVar[Mapping[str, Command]] = {}  # by all their words: "keys budgets" is a command of the group keys
    former_commands: ClassVar[Mapping[str, str]] = {}  # names (with an option) of before; the error names the new one
    server_names: ClassVar[tuple[str, ...]] = ()  # of `PartRuntime.servers`: each process of a gateway has them itself
    metrics: ClassVar[Mapping[str, Metric]] = {}  # by name, which begins with toolway_ and the name of the part
    status_schema: ClassVar[str] = ""  # name of the schema of `PartRuntime.status`; "": it has none
    key_attributes: ClassVar[Mapping[str, KeyAttribute]] = {}
    table_file: ClassVar[str] = ""  # name of its SQLite file in the state folder, if it stores data
    table_version: ClassVar[int] = 1  # of `tables`; the next number for each change of released tables
    inbox: ClassVar[str] = ""  # `module:class` of what waits for the user (`inbox.py`), for `toolway approvals`
    cluster_store: ClassVar[str] = ""  # `module:function` that opens its store in a cluster, if `tables` cannot hold it

    def parse_settings(self, block: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        """Return the settings in its keys of the `toolway` block. Raises `ConfigError`. Called if one is there."""
        return found(block, variables) if (found := self._find("parse_settings")) else None

    def warnings(self, settings: Any) -> Sequence[ConfigIssue]:
        """Return what is wrong with its settings on this machine, although they can be used."""
        return ()

    def implied(self, settings: Any) -> Implied:
        """Return what its settings say about the whole gateway."""
        return Implied()

    def open(self, context: PartContext) -> PartRuntime:
        """Start the part in a gateway. The settings follow: `PartRuntime.apply`."""
        runtime: PartRuntime = found(self, context) if (found := self._find("open")) else PartRuntime()
        return runtime

    def routes(self) -> Sequence[Route]:
        """Return its operations of the admin API. Their handlers get the runtime and the request."""
        return self._find("routes") or ()

    def schemas(self) -> Mapping[str, Json]:
        """Return the JSON Schemas of bodies and replies that its routes name."""
        return self._find("schemas") or {}

    def check(self, gateway: GatewaySettings, config_file: str) -> Sequence[SubjectReport]:
        """Return what `toolway doctor` says about the part, given the settings of a gateway and their file."""
        return found(gateway, config_file) if (found := self._find("check")) else ()

    async def check_credentials(
        self, config: LoadedConfig | None, read: Callable[[], str] | None = None
    ) -> Sequence[SubjectReport]:
        """Return what `toolway doctor` says about credentials that the part verifies. None: no configuration.

        `read` returns the one that the user asks about, if there is one. Raises `UsageError` if it cannot be checked.
        """
        return await found(config, read) if (found := self._find("check_credentials")) else ()

    def create_verifier(self, config: LoadedConfig) -> CredentialVerifier | None:
        """Return what would verify credentials in a gateway with this configuration, to test it. None: nothing.

        Raises `ConfigError` if that gateway would not start.
        """
        return found(config) if (found := self._find("create_verifier")) else None

    def check_file(self, gateway: GatewaySettings) -> Iterable[Check]:
        """Yield what `toolway doctor` says about the part below a config file with these settings."""
        return found(gateway) if (found := self._find("check_file")) else ()

    def find_issues(self, config: LoadedConfig, *, only_approved: bool = False) -> Sequence[ConfigIssue]:
        """Return what is wrong with the files that the settings name. It reads them, so it may be called in a thread.

        With `only_approved`, files that need review are left out.
        """
        return found(config, only_approved=only_approved) if (found := self._find("find_issues")) else ()

    def shared_settings(self, config: LoadedConfig) -> Mapping[str, Any]:
        """Return keys of the `toolway` block as all nodes of a cluster get them: contents instead of names of files.

        It reads these files, so it is called in a thread.
        """
        return found(config) if (found := self._find("shared_settings")) else {}

    def tables(self) -> Sequence[Table]:
        """Return the tables in which it stores data."""
        return self._find("tables") or ()

    def upgrade_tables(self, version: int) -> Sequence[str]:
        """Return the SQL statements that bring tables of this version to the next one, in both databases.

        They run once, in one transaction. Tables that are missing are created after them.
        """
        return ()

    def _find(self, method: str) -> Any:
        """Return what `code` names for a method; None if it names nothing."""
        module, _, attribute = self.code.get(method, "").partition(":")
        if not module:
            return None
        package = next(each.__module__ for each in type(self).__mro__ if "code" in vars(each))
        return operator.attrgetter(attribute)(importlib.import_module(f"{package}.{module}"))


class PartRuntime:
    """A part in one running gateway.

    A gateway calls `start` and `begin` once, and `prepare` if it serves HTTP clients; then, at each reload of its
    configuration, `check`, `apply`, `load` and `reload`; at its end `drain`, `finish` and `close`.
    """

    def start(self, settings: Any) -> None:
        """Use the first settings. None: there are none. Raises `ConfigError`: the gateway does not start then."""
        self.apply(settings)

    async def prepare(self) -> None:
        """Get ready, before the gateway listens. Raises `ConfigError`: the gateway does not start then."""

    def check(self, settings: Any) -> None:
        """Raise `ConfigError` if new settings cannot be used. Nothing is applied yet. None: no settings."""

    def apply(self, settings: Any) -> None:
        """Use these settings from now on. At a reload, this comes before its servers are applied.

        None if the configuration has none of its keys. It must not raise.
        """

    async def load(self, config: LoadedConfig) -> None:
        """Read the files that a configuration names, before its servers are applied. It must not raise."""

    async def begin(self, config: LoadedConfig) -> None:
        """Begin to work. The hub runs, and no client is served yet. It must not raise, nor wait for long."""

    def servers(self) -> Mapping[str, Server]:
        """Return servers in this process that the hub gets in addition to the configured servers, which win.

        Their names are `Part.server_names`. Definitions of their tools are never held: they are the operator's own.
        """
        return {}

    @property
    def issues(self) -> Sequence[ConfigIssue]:
        """Problems of the files that its settings name, as they are now."""
        return ()

    def stamps(self, gateway: GatewaySettings) -> Sequence[object]:
        """Return values that differ if a file was changed that these settings name: the configuration is read again."""
        return ()

    def on_servers_changed(self) -> None:
        """Look at the server entries again: after the start, and after each reload. It must not raise."""

    async def reload(self, settings: Any) -> Sequence[str]:
        """Read its own files again, as the last step of a reload. Return what is wrong with them. It must not raise."""
        return ()

    async def run(self) -> None:
        """Work in the background until cancelled, for example to watch a file."""

    def gauges(self) -> Iterable[Gauge]:
        """Return the values of its `Part.metrics` for `/metrics`. It must not wait for anything."""
        return ()

    async def read_gauges(self) -> Iterable[Gauge]:
        """Return more values, which it has to read from its database."""
        return ()

    def status(self) -> Json:
        """Return facts for `GET /admin`, as `Part.status_schema` describes them."""
        return {}

    def worker_report(self) -> Json:
        """Return what the first worker of this machine has to know from each other one, for what it shows.

        It gets these reports from `PartContext.reports_of_workers`.
        """
        return {}

    def drain(self) -> None:
        """Begin no more work, and end what calls wait for: the gateway shuts down. Its servers still run."""

    async def finish(self, timeout: float) -> None:
        """End the running work, while servers and telemetry still run. It may take `timeout` seconds."""

    async def close(self) -> None:
        """Store what must not be lost, and release all resources."""


class PartContext(Protocol):
    """Objects and functions that a gateway gives its parts. `toolway.gateway.part_set` implements it."""

    @property
    def hub(self) -> HubCore: ...

    @property
    def api_keys(self) -> ApiKeyStore | None:
        """Keys of the gateway; None if authentication is off."""
        ...

    @property
    def limits(self) -> CallLimits:
        """Limits on calls of a principal, which are charged before a call is sent."""
        ...

    @property
    def permissions(self) -> Permissions:
        """Access of principals to tools and other items, which one part may decide about."""
        ...

    @property
    def meta_tools(self) -> MetaTools:
        """Tools that endpoints may list instead of those of their servers, which one part may provide."""
        ...

    @property
    def credentials(self) -> Credentials:
        """Bearer credentials that are not API keys, which one part may verify."""
        ...

    @property
    def sealer(self) -> Sealer | None:
        """Sealer of handles for clients, which all processes of the gateway can open; None until `prepare`."""
        ...

    @property
    def config_file(self) -> Callable[[], str]:
        """Function that returns the path of the configuration file; "" if there is none."""
        ...

    @property
    def gate(self) -> CheckedGate | None:
        """Gate before calls that can ask an operator; None if no part that was opened before has set one."""
        ...

    def set_gate(self, gate: CheckedGate) -> None:
        """Let `gate` decide about every call before it is sent. Raises `LookupError` if there is another one."""
        ...

    @property
    def gateway_url(self) -> Callable[[], str]:
        """Function that returns the URL under which users reach this gateway; "" if it is not known."""
        ...

    @property
    def node_count(self) -> Callable[[], int]:
        """Function that returns how many processes serve this gateway."""
        ...

    @property
    def rights(self) -> CallerRights:
        """Rights of principals at this gateway. Nobody has any until the gateway exists."""
        ...

    @property
    def report(self) -> Callable[[str], None]:
        """Function that adds a line to the events of the dashboard."""
        ...

    @property
    def alerts(self) -> AlertSettings:
        """Settings of alerts, or their defaults."""
        ...

    @property
    def place(self) -> GatewayPlace:
        """State folder, store of the cluster, and whether this process is the first of several."""
        ...

    @property
    def servers_lock(self) -> asyncio.Lock:
        """Lock that is held while servers of the hub are added, changed or removed."""
        ...

    def open_database(self, part: Part) -> Database | None:
        """Return the database with the tables of a part, which all processes of the gateway share.

        None if this gateway stores nothing.
        """
        ...

    def derive_key(self, part: Part) -> bytes:
        """Return a secret of the part of 32 bytes, the same in all processes, to seal what it stores."""
        ...

    def reports_of_workers(self, part: Part) -> Sequence[Json]:
        """Return the last `PartRuntime.worker_report` of each other worker. Only the first worker has them."""
        ...

    def runtime(self, name: str, kind: type[R]) -> R:
        """Return the runtime of a part that is named in `needs`."""
        ...

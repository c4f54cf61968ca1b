"""A part's declaration (`Part`), its life in a gateway (`PartRuntime`), and what the gateway gives it (`PartContext`).

The module that defines a `Part` must be cheap to import, because `toolway --help` imports it. `Part.code` names the
modules that do the work.
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

    from toolway.cli.options import CommandContext
    from toolway.config.exposure import GatewayRules
    from toolway.config.loader import LoadedConfig
    from toolway.config.schema import ConfigIssue, Server
    from toolway.config.settings import AlertSettings, GatewaySettings
    from toolway.doctor.report import Check, SubjectReport
    from toolway.gateway.admin.routes import Route
    from toolway.gateway.caller_paths import CallerPaths
    from toolway.gateway.credentials import Credentials, CredentialVerifier
    from toolway.gateway.limits import CallLimits
    from toolway.gateway.meta_tools import MetaTools
    from toolway.gateway.permissions import Permissions
    from toolway.gateway.principals import ApiKeyStore, Principal
    from toolway.gateway.sealing import Sealer
    from toolway.hub.core import HubCore
    from toolway.middleware.approval import CheckedGate
    from toolway.part_api.database import Database, Table
    from toolway.part_api.found_server import FoundServer
    from toolway.types import Json

R = TypeVar("R", bound="PartRuntime")


class Command:
    """One CLI command: its help line, and its function as `module:function`, or its subcommands."""

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


class Declaration:
    """What a part declares. It must be cheap to import, so it names the code that does the work."""

    #: Method → `module:attribute` in the part's package: a function with the same parameters, or the value.
    code: ClassVar[Mapping[str, str]] = {}

    def _find(self, method: str) -> Any:
        """Return what `code` names for a method, or None if it names nothing."""
        module, _, attribute = self.code.get(method, "").partition(":")
        if not module:
            return None
        package = next(each.__module__ for each in type(self).__mro__ if "code" in vars(each))
        return operator.attrgetter(attribute)(importlib.import_module(f"{package}.{module}"))


class KeyAttribute(Declaration):
    """An API key attribute that a part adds: a limit that is stored with the key.

    A key with an unknown attribute is rejected, because nothing would enforce the limit.
    """

    schema: ClassVar[Json] = {}  # of a key in the admin API
    empty: ClassVar[Any] = None  # shown for a key without it
    option: ClassVar[str] = ""  # of `toolway keys create`; "" = none
    option_type: ClassVar[Any] = str
    metavar: ClassVar[str] = ""
    help: ClassVar[str] = ""

    def read(self, value: Any) -> Any:
        """Return a given value as JSON for storage, or None if it restricts nothing. Raises `ValueError`."""
        if found := self._find("read"):
            return found(value)
        raise NotImplementedError

    def show(self, stored: Any) -> Any:
        """Return a stored value as the admin API shows it."""
        return found(stored) if (found := self._find("show")) else stored

    def describe(self, shown: Any) -> list[str]:
        """Return a shown value in words."""
        return found(shown) if (found := self._find("describe")) else [str(shown)]


class Metric(NamedTuple):
    """A part's metric, which is read on each request to `/metrics`."""

    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"  # a counter only grows; its name at `/metrics` ends with _total


class CallerRights(NamedTuple):
    """The current rights of principals at a gateway, for work that outlives their requests."""

    may_call: Callable[[Principal, str, Json | None], bool]  # a tool, with these arguments; None: with none
    may_see: Callable[[Principal, str], bool]  # a tool in a list
    find_user: Callable[[str], Principal | None]  # a user's principal as of the last login, by id


class GatewayPlace(NamedTuple):
    """The gateway's place among the processes that serve it, and what these processes share."""

    folder: Path | None = None  # state folder of this machine; None: this gateway stores nothing
    open_store: Callable[[Part], Any] = lambda part: None  # opens `Part.cluster_store`; it may raise `ConfigError`
    is_first: Callable[[], bool] = lambda: True  # of all nodes: the one that reports what concerns all
    is_first_worker: bool = True  # of this machine: the one that does work that only one of them may do


class Gauge(NamedTuple):
    """The current value of one of a part's metrics, with its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = MappingProxyType({})


class CheckedGateway(NamedTuple):
    """What `toolway doctor --security` knows about this machine's gateway."""

    settings: GatewaySettings
    folder: Path  # its state folder
    environ: Mapping[str, str]
    is_node: bool  # of a cluster
    is_running: bool
    rules: GatewayRules
    servers: Mapping[str, Server]  # that it would start, by name


class Implied(NamedTuple):
    """What a part's settings imply for the whole gateway."""

    url: str = ""  # under which users reach it, without a slash at the end
    public_reason: str = ""  # why it counts as public, for human readers; "" if the part does not make it public
    access: Mapping[str, Sequence[str]] = MappingProxyType({})  # group of users → patterns of the tools it may use


class Part(Declaration):
    """A gateway feature. Subclass this, and register the subclass in `registry.py` or by an entry point.

    Name the code that does the work in `code`, or override a method. Any method may be the first one called, so each
    imports what it needs.
    """

    name: ClassVar[str]
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
    transport: ClassVar[str] = ""  # `module:class` of its `ServerTransport`, which has the name of the part
    entry_keys: ClassVar[tuple[str, ...]] = ()  # keys of server entries that its commands read, from `Server.extras`
    inbox: ClassVar[str] = ""  # `module:class` of what waits for the user (`inbox.py`), for `toolway approvals`
    audit_sinks: ClassVar[Mapping[str, str]] = {}  # `toolway.audit.to` → `module:function` that creates an `AuditSink`
    start_guard: ClassVar[str] = ""  # `module:class` that is asked before a server process starts (`start_guard.py`)
    guard_checks: ClassVar[str] = ""  # `module:class` of what `toolway doctor` says about it (`GuardChecks`)
    entry_file: ClassVar[str] = ""  # name of a file next to a config file, which its start guard reads
    program_folder: ClassVar[str] = ""  # in the data folder: programs that its start guard starts
    cluster_store: ClassVar[str] = ""  # `module:function` that opens its store in a cluster, if `tables` cannot hold it

    def parse_settings(self, block: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        """Parse this part's keys in the `toolway` block. Called only if there are any. Raises `ConfigError`."""
        return found(block, variables) if (found := self._find("parse_settings")) else None

    def warnings(self, settings: Any) -> Sequence[ConfigIssue]:
        """Return warnings about settings that can be used but do not fit this machine."""
        return found(settings) if (found := self._find("warnings")) else ()

    def implied(self, settings: Any) -> Implied:
        """Return what the settings imply for the whole gateway."""
        return found(settings) if (found := self._find("implied")) else Implied()

    def requires_guard(self, settings: Any, *, is_public: bool) -> bool:
        """Return True if a gateway with these settings (or none) may only start what its start guard knows."""
        return bool((found := self._find("requires_guard")) and found(settings, is_public=is_public))

    def open(self, context: PartContext) -> PartRuntime:
        """Start the part in a gateway. The settings come later: `PartRuntime.apply`."""
        runtime: PartRuntime = found(self, context) if (found := self._find("open")) else PartRuntime()
        return runtime

    def routes(self) -> Sequence[Route]:
        """Return the part's admin API operations. Their handlers get the runtime and the request."""
        return self._find("routes") or ()

    def schemas(self) -> Mapping[str, Json]:
        """Return the JSON Schemas for request bodies and replies in the part's routes."""
        return self._find("schemas") or {}

    def check(self, gateway: GatewaySettings, config_file: str) -> Sequence[SubjectReport]:
        """Return the part's checks for `toolway doctor`, given a gateway's settings and config file."""
        return found(gateway, config_file) if (found := self._find("check")) else ()

    async def check_credentials(
        self, config: LoadedConfig | None, read: Callable[[], str] | None = None
    ) -> Sequence[SubjectReport]:
        """Return `toolway doctor` checks for the credentials that this part verifies.

        `config` is None without a configuration. `read` returns the credential that the user wants checked, if
        any. Raises `UsageError` if it cannot be checked.
        """
        return await found(config, read) if (found := self._find("check_credentials")) else ()

    def create_verifier(self, config: LoadedConfig) -> CredentialVerifier | None:
        """Return this configuration's credential verifier, so it can be tested, or None if there is none.

        Raises `ConfigError` if a gateway with this configuration would not start.
        """
        return found(config) if (found := self._find("create_verifier")) else None

    def check_file(self, gateway: GatewaySettings) -> Iterable[Check]:
        """Yield `toolway doctor` checks for the part, shown below a config file with these settings."""
        return found(gateway) if (found := self._find("check_file")) else ()

    def check_security(self, gateway: CheckedGateway) -> Sequence[Check]:
        """Return the part's evidence for its guarantee in `toolway doctor --security`. It may block."""
        return found(gateway) if (found := self._find("check_security")) else ()

    def find_issues(self, config: LoadedConfig, *, only_approved: bool = False) -> Sequence[ConfigIssue]:
        """Return problems with the files that the settings name. It reads them, so call it in a thread.

        With `only_approved`, skip files that need review.
        """
        return found(config, only_approved=only_approved) if (found := self._find("find_issues")) else ()

    def shared_settings(self, config: LoadedConfig) -> Mapping[str, Any]:
        """Return the `toolway` keys as all cluster nodes get them, with file contents in place of file names.

        It reads these files, so it is called in a thread.
        """
        return found(config) if (found := self._find("shared_settings")) else {}

    def names_server(self, word: str) -> bool:
        """Return True if a word has the form of a name that `find_server` looks up. It must not wait for anything."""
        return bool(found(word)) if (found := self._find("names_server")) else False

    def find_server(self, context: CommandContext, word: str) -> FoundServer:
        """Return the server with this name, for `toolway add`. Called if `names_server` returns True.

        Raises `ToolwayError` if there is none, or it must not be added.
        """
        found: FoundServer = self._find("find_server")(context, word)
        return found

    def secure_added(self, context: CommandContext, words: Sequence[str], name: str) -> str:
        """Secure a server that `find_server` found and `toolway add` added, such as lock its packages.

        `words` is its command line. Return what was done, or "". Raises `ToolwayError` if that is not possible.
        """
        return found(context, words, name) if (found := self._find("secure_added")) else ""

    def tables(self) -> Sequence[Table]:
        """Return the part's tables."""
        return self._find("tables") or ()

    def upgrade_tables(self, version: int) -> Sequence[str]:
        """Return SQL that upgrades the tables from this version to the next, for both databases.

        The SQL runs once, in one transaction. Missing tables are created afterwards.
        """
        return found(version) if (found := self._find("upgrade_tables")) else ()


class PartRuntime:
    """A part in one running gateway.

    A gateway calls `start` and `begin` once, and `prepare` if it serves HTTP clients; on each config reload `check`,
    `apply`, `load` and `reload`; and on shutdown `drain`, `finish` and `close`.
    """

    def start(self, settings: Any) -> None:
        """Use the first settings, which may be None. Raises `ConfigError` to stop the gateway from starting."""
        self.apply(settings)

    async def prepare(self) -> None:
        """Get ready before the gateway listens. Raises `ConfigError` to stop it from starting."""

    def check(self, settings: Any) -> None:
        """Raise `ConfigError` if new settings (which may be None) cannot be used. Do not apply anything yet."""

    def apply(self, settings: Any) -> None:
        """Use these settings from now on. On a reload, this runs before the new servers are applied.

        The settings are None if the configuration has no keys for this part. Must not raise an error.
        """

    async def load(self, config: LoadedConfig) -> None:
        """Read the files that a configuration names, before its servers are applied. Must not raise an error."""

    async def begin(self, config: LoadedConfig) -> None:
        """Start working: the hub is running, but no client is served yet. Must not raise an error or wait for long."""

    def servers(self) -> Mapping[str, Server]:
        """Return in-process servers to add to the hub. Configured servers with the same name win.

        Their names are in `Part.server_names`. Their tool definitions are never put on hold, because they are your
        own code.
        """
        return {}

    @property
    def issues(self) -> Sequence[ConfigIssue]:
        """Return current problems with the files that its settings name."""
        return ()

    def stamps(self, gateway: GatewaySettings) -> Sequence[object]:
        """Return values that change when a file named in these settings changes. A change triggers a reload."""
        return ()

    def on_servers_changed(self) -> None:
        """Look at the server entries again, after startup and after each reload. Must not raise an error."""

    async def reload(self, settings: Any) -> Sequence[str]:
        """Reread the part's own files, as the last step of a reload, and return problems. Must not raise an error."""
        return ()

    async def run(self) -> None:
        """Work in the background until cancelled, for example to watch a file."""

    def gauges(self) -> Iterable[Gauge]:
        """Return the values of `Part.metrics` for `/metrics`. Must not wait."""
        return ()

    async def read_gauges(self) -> Iterable[Gauge]:
        """Return more values for `/metrics`, which have to be read from the part's database."""
        return ()

    def status(self) -> Json:
        """Return the part's data for `GET /admin`, as `Part.status_schema` describes it."""
        return {}

    def worker_report(self) -> Json:
        """Return what this machine's first worker needs to know from each other worker, for what it shows.

        The first worker gets these reports from `PartContext.reports_of_workers`.
        """
        return {}

    def drain(self) -> None:
        """Start no new work, and end what calls are waiting for, because the gateway is shutting down.

        Servers are still running.
        """

    async def finish(self, timeout: float) -> None:
        """Finish running work within `timeout` seconds, while servers and telemetry are still running."""

    async def close(self) -> None:
        """Save what must not be lost, and release all resources."""


class PartContext(Protocol):
    """What a gateway gives its parts. Implemented by `toolway.gateway.part_set`."""

    @property
    def hub(self) -> HubCore: ...

    @property
    def api_keys(self) -> ApiKeyStore | None:
        """The gateway's API keys, or None if authentication is off."""
        ...

    @property
    def limits(self) -> CallLimits:
        """Limits on a principal's calls, which are charged before a call is sent."""
        ...

    @property
    def permissions(self) -> Permissions:
        """Which tools and other items each principal may use. One part may decide this."""
        ...

    @property
    def meta_tools(self) -> MetaTools:
        """Tools that endpoints may list instead of their servers' tools. One part may provide them."""
        ...

    @property
    def caller_paths(self) -> CallerPaths:
        """Paths outside `/mcp` at which parts answer authenticated callers."""
        ...

    @property
    def credentials(self) -> Credentials:
        """Bearer credentials other than API keys. One part may verify them."""
        ...

    @property
    def sealer(self) -> Sealer | None:
        """Seals handles for clients so all gateway processes can open them. It is None until `prepare`."""
        ...

    @property
    def config_file(self) -> Callable[[], str]:
        """Function that returns the config file's path, or "" without one."""
        ...

    @property
    def gate(self) -> CheckedGate | None:
        """The gate that calls pass before they are sent. It is None if no part that was opened earlier has set one."""
        ...

    def set_gate(self, gate: CheckedGate) -> None:
        """Let `gate` decide on every call before it is sent. Raises `LookupError` if there already is a gate."""
        ...

    @property
    def gateway_url(self) -> Callable[[], str]:
        """Function that returns the URL where users reach this gateway, or "" if unknown."""
        ...

    @property
    def node_count(self) -> Callable[[], int]:
        """Function that returns how many processes serve this gateway."""
        ...

    @property
    def rights(self) -> CallerRights:
        """The rights of principals at this gateway. No one has any until the gateway exists."""
        ...

    @property
    def report(self) -> Callable[[str], None]:
        """Function that adds a line to the events on the dashboard."""
        ...

    @property
    def alerts(self) -> AlertSettings:
        """Alert settings, or the defaults."""
        ...

    @property
    def place(self) -> GatewayPlace:
        """State folder, cluster store, and whether this process is the first of several."""
        ...

    @property
    def servers_lock(self) -> asyncio.Lock:
        """Lock to hold while you add, change, or remove servers of the hub."""
        ...

    def open_database(self, part: Part) -> Database | None:
        """Return the database with a part's tables, shared by all processes of the gateway.

        Return None if this gateway stores nothing.
        """
        ...

    def derive_key(self, part: Part) -> bytes:
        """Return a 32-byte secret, the same in all processes, for sealing what the part stores."""
        ...

    def reports_of_workers(self, part: Part) -> Sequence[Json]:
        """Return each other worker's last `PartRuntime.worker_report`. Only the first worker has them."""
        ...

    def runtime(self, name: str, kind: type[R]) -> R:
        """Return the runtime of a part listed in `needs`."""
        ...

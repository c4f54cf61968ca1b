"""How a part or another distribution adds a kind of server: which entries it serves, and how.

`ServerTransport` is the declaration: it reads an entry and creates the transport. `TransportSettings` is the content
of the entry, in `Server.transport_settings`. Its methods tell the core what it must know about every server: which
addresses it reaches, which strings may be secrets, and whether it needs a login.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from toolway.errors import ConfigError

if TYPE_CHECKING:
    from toolway.config.field_reader import FieldReader
    from toolway.config.schema import Server
    from toolway.upstream.transport import Transport, TransportServices


class EntryString(NamedTuple):
    """A string in a transport's settings that may hold references to secrets."""

    kind: Literal["url", "header", "credential"]  # how a secret is inserted, and whether all of it is one
    name: str  # of the header or credential
    value: str


class TransportSettings:
    """A server entry's settings for a transport from a part or another distribution.

    Subclass it as a frozen dataclass. Strings in its fields may be references to secrets and variables. Return these
    strings from `strings`, and they are replaced before the server starts.
    """

    __slots__ = ()

    kind: ClassVar[str]  # name of the transport, which is its key in an entry, too
    takes_url: ClassVar[bool] = False  # the entry may have a `url`, too
    is_stateless: ClassVar[bool] = False  # each node of a cluster may send calls, without an owner of the server
    ignores_null: ClassVar[bool] = False  # arguments with the value null are not sent

    @property
    def location(self) -> str:
        """The server's address, for messages. It may contain a secret."""
        return self.kind

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs that the transport reaches, besides the entry's `url`."""
        return ()

    @property
    def file_key(self) -> str:
        """Key of a file on this machine that the transport reads, such as `openapi.file`, or "" if it reads none."""
        return ""

    @property
    def token_key(self) -> str:
        """Key of the fixed credentials in the entry, for hints, or "" if it has none."""
        return ""

    @property
    def idempotency_meta_key(self) -> str | None:
        """The `_meta` key in which the transport gets idempotency keys, or None if the server does not accept them."""
        return None

    def check(self, server: Server) -> None:
        """Raise `ConfigError` if the rest of the entry does not fit."""

    def fingerprint(self) -> tuple[Any, ...]:
        """Return what distinguishes one server from another, as JSON values without secrets.

        Stored lists depend on it.
        """
        return (self.kind, self.location)

    def strings(self) -> Iterable[EntryString]:
        """Return the strings that may be references or secrets."""
        return ()

    def with_strings(self, change: Callable[[EntryString], str]) -> TransportSettings:
        """Return a copy in which each of `strings` is replaced with the value that `change` returns for it."""
        return self

    def keep_restrictions(self, configured: TransportSettings) -> TransportSettings:
        """Return a copy that keeps the restrictions of the administrator's entry, which this entry replaces.

        Raises `RestrictionLost` if this entry sets other restrictions.
        """
        return self


class RestrictionLost(Exception):
    """Raised if an entry would replace the administrator's restrictions with its own. `key` says where they are."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class ServerTransport:
    """A kind of server that a part or another distribution adds.

    `kind` is the key of an entry, its `type`, and the scheme of its `url`: `{"carrier": {…}}`, `{"type": "carrier"}`,
    `{"url": "carrier://host"}`. Any of these selects the transport. An entry point must have the same name.

    Example:
        class Carrier(ServerTransport):
            kind = "carrier"

            def create(self, server, services):
                return CarrierTransport(server.url)
    """

    kind: ClassVar[str]
    error_code: ClassVar[str] = "E-CONFIG-TYPE"  # of what is wrong with its entries
    title: ClassVar[str] = "such servers"  # in messages: "it does not support HTTP APIs as servers"
    file_keys: ClassVar[tuple[str, ...]] = ()  # keys in its settings with files of this machine
    url_keys: ClassVar[tuple[str, ...]] = ()  # keys in its settings with addresses that get the entry's credentials
    start_check: ClassVar[str] = ""  # `module:function`: what `toolway doctor` says about a `TrialStart` of a server
    passed_keys: ClassVar[
        tuple[str, ...]
    ] = ()  # beginnings of keys whose values are only passed on, such as "headers."

    def create(self, server: Server, services: TransportServices) -> Transport:
        """Return a new, unopened transport for an entry whose references have been resolved."""
        raise NotImplementedError

    def parse(self, given: Any, fields: FieldReader) -> tuple[TransportSettings | None, str | None]:
        """Return the settings under this transport's key, and the server's URL if the settings name it.

        `given` is the value of the key, or None if the entry has only the type. `fields` has the entry's keys that
        have not been read yet. Raises `ConfigError` for anything that cannot be read.
        """
        if given is not None:
            raise ConfigError(f"{self.kind} servers have no settings", hint=f"remove {self.kind}", code=self.error_code)
        return None, None

    def entry_from_source(self, source: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return a URL or words to name a server after, and its entry, for `toolway add KIND:SOURCE`.

        Return None if a source cannot name a server.
        """
        return None

    def receiver_key(self, key: str) -> str:
        """Return which of `url_keys` names the receiver of the value under `key`, or "" if it is the server itself."""
        return ""

    def is_credential(self, path: tuple[str, ...]) -> bool:
        """Return True if the key at `path` in its settings holds a credential, whatever the value looks like."""
        return False

    def entry_for_document(self, body: bytes, url: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return what a document at a URL is called, and entry keys that would use it, or None if it is unknown.

        `toolway doctor` calls this if what answers at the URL is not an MCP server.
        """
        return None

"""What can be configured, as frozen values. The comment on a field is its reference documentation.

Durations are seconds. Files spell them as hosts do (`timeout` in milliseconds) or as text with a unit (`"20s"`);
`formats.py` turns those into these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.config.references import Unresolved
from toolway.errors import ConfigError
from toolway.model import Effect

EraSetting = Literal["auto", "modern", "legacy"]
EnvPolicy = Literal["safe", "inherit", "none"]
Grant = Literal["authorization_code", "client_credentials"]
CredentialKind = Literal["scheme", "apiKey", "bearer", "basic"]
CredentialPlace = Literal["header", "query", "cookie"]

MAX_TIMEOUT = 900.0  # a synchronous call is never longer than 15 minutes; longer work is a task
KEY_META = "toolway/idempotencyKey"  # of `_meta`: how a key travels to a link that makes a header of it


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long things may take. `Timeout(30, connect=5)`: a call 30 s in all, 5 s of it to connect."""

    total: float = 60.0  # one call, from receipt to answer (ceiling 900)
    connect: float = 5.0  # name look-up, TCP connect and TLS
    start: float = 30.0  # from starting a server to its first valid answer
    queue: float = 5.0  # waiting for a free slot or for a server that is down
    write: float = 10.0  # a server that does not take a request for so long has stopped reading


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call that may be repeated is tried. Whether it may is decided by its effect and by how far it got."""

    attempts: int = 3  # in all (5 at most)
    delay: float = 0.05  # the first wait after a loss is random up to this
    multiplier: float = 2.0  # by which the ceiling of the wait grows
    throttled_delay: float = 1.0  # the same after a server asked us to slow down without saying for how long
    cap: float = 20.0  # the longest wait


@dataclass(frozen=True, slots=True)
class Restart:
    """When and how often a server that ended is started again."""

    delay: float = 0.1  # the first wait; each further one is up to twice as long, at random
    cap: float = 30.0  # the longest wait
    limit: int = 5  # more restarts than this within `window` and the server counts as failed
    window: float = 60.0  # seconds looked back
    pause: float = 300.0  # a failed server is tried again this often
    settled: float = 60.0  # after so long a healthy life, earlier restarts are forgotten


@dataclass(frozen=True, slots=True)
class Health:
    """How a silent server is noticed."""

    interval: float = 30.0  # ask after so much silence; 0 = never ask
    timeout: float = 10.0  # an answer that takes longer is a miss
    misses: int = 3  # so many in a row and the server is restarted
    strict: bool = False  # restart even while a call is under way


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one server may be given at once."""

    concurrent: int = 128  # calls under way
    waiting: int = 1024  # calls waiting for a slot; one more is refused at once
    frame: int = 8 * 1024 * 1024  # bytes of one message from the server
    stderr: int = 64 * 1024  # bytes of stderr kept
    compression: bool = False  # accept gzip and deflate from an HTTP server (20:1 at most)
    tools: int = 1000  # of a server; the rest is left out, and the status says so


@dataclass(frozen=True, slots=True)
class ToolRule:
    """What the operator says about one tool."""

    effect: Effect | None = None  # read, idempotent or unsafe; wins over what the server says
    repeatable: bool | None = None  # the operator's word that it may run again
    cache: float = 0.0  # seconds for which an answer of a READ tool may be given again; 0 = never
    timeout: float | None = None  # seconds for one call of this tool


@dataclass(frozen=True, slots=True)
class OAuth:
    """How the hub gets a token for a server that asks for OAuth. Without any of it the hub finds out by itself."""

    grant: Grant = "authorization_code"  # authorization_code: a person logs in; client_credentials: the hub itself
    issuer: str | None = None  # the authorization server that knows this client; required with a secret or a key
    client_id: str | None = None  # of a client that is registered already
    client_secret: str | None = field(default=None, repr=False)  # sent to `issuer` alone
    private_key: str | None = field(default=None, repr=False)  # PEM; signs instead of a secret (client_credentials)
    algorithm: str = "RS256"  # by which `private_key` signs
    client_metadata_url: str | None = None  # https address that describes this client, where the issuer accepts one
    scopes: tuple[str, ...] = ()  # asked for instead of what the server suggests
    redirect_uri: str = "http://127.0.0.1:33418/callback"  # where a login ends

    def __post_init__(self) -> None:
        object.__setattr__(self, "scopes", tuple(self.scopes))
        secret = self.client_secret is not None or self.private_key is not None
        if secret and self.issuer is None:
            # Else whoever answers at the server's address would choose who gets the secret.
            raise _bad_auth("a clientSecret or privateKey needs the issuer it is for", 'add "issuer": "https://…"')
        if secret and self.client_id is None:
            raise _bad_auth("a clientSecret or privateKey needs a clientId", 'add "clientId"')
        if self.grant == "client_credentials" and not secret:
            raise _bad_auth("client_credentials needs a clientSecret or a privateKey", "add one of them")
        if self.private_key is not None and self.grant != "client_credentials":
            raise _bad_auth("a privateKey is used with client_credentials only", 'set "grant": "client_credentials"')
        url = self.client_metadata_url
        if url is not None and not re.match(r"https://[^/\s]+/[^\s]", url):
            raise _bad_auth("clientMetadataUrl must be an https address with a path", "correct it")


@dataclass(frozen=True, slots=True)
class Picks:
    """Operations of an OpenAPI document, by what they are. `*` stands for anything."""

    tags: tuple[str, ...] = ()  # those with one of these tags
    paths: tuple[str, ...] = ()  # those whose path in the document is one of these: /pets/*
    methods: tuple[str, ...] = ()  # those of one of these methods: get
    operations: tuple[str, ...] = ()  # those with one of these operationIds


@dataclass(frozen=True, slots=True)
class Credential:
    """What an API knows us by, and where it goes. It is sent to the API's own origin alone."""

    value: str = field(repr=False)  # a key, a token, or user:password
    kind: CredentialKind = "scheme"  # scheme: the document says where it goes; else every request has it
    name: str = ""  # of the document's security scheme; of the header, query parameter or cookie of an apiKey
    place: CredentialPlace = "header"  # of an apiKey


@dataclass(frozen=True, slots=True)
class OpenApi:
    """An HTTP API that an OpenAPI or Swagger document describes. Exactly one of url, file and document."""

    url: str | None = None  # where the document is
    file: str | None = None  # the same on this machine
    document: Mapping[str, Any] | None = field(default=None, repr=False)  # the same, as it is
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent where the document is fetched
    include: Picks = Picks()  # only operations that fit every kind of pattern given here
    exclude: Picks = Picks()  # and of those none that fits one of these
    credentials: tuple[Credential, ...] = ()  # `security` in files
    key_header: str | None = None  # the header by which the API itself honours idempotency keys
    outputs: bool = True  # promise what the document says of answers; false where answers do not keep it
    refresh: float = 3600.0  # fetch the document again after so many seconds; 0 = never

    def __post_init__(self) -> None:
        given = [k for k in ("url", "file", "document") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ConfigError(
                "openapi needs exactly one of url, file or document",
                evidence=f"found {' and '.join(given) or 'none'}",
                fix='write "openapi": {"url": "https://…/openapi.json"}',
                code="E-CONFIG-OPENAPI",
            )
        if self.url is not None and not re.match(r"https?://[^/\s]", self.url):
            what = "the address of an OpenAPI document must begin with http:// or https://"
            raise ConfigError(what, evidence=_scheme(self.url), fix='use "file" for a file', code="E-CONFIG-OPENAPI")


@dataclass(frozen=True, slots=True)
class Server:
    """One configured server: a command, a URL, an object in this process, or an API; exactly one of the four. The API
    may have a URL too, which goes before the `servers` of its document."""

    command: str | None = None  # a program; never run through a shell
    args: tuple[str, ...] = ()  # its arguments
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # added to what `env_policy` passes on
    cwd: str | None = None  # working directory of the program
    env_policy: EnvPolicy = "safe"  # safe: base, proxy and CA variables; inherit: everything; none: base only
    url: str | None = None  # a Streamable HTTP endpoint, or with `openapi` the address of the API
    sse: bool = False  # the url speaks HTTP+SSE of 2024-11-05, which is deprecated; what is not said is found out
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with every HTTP request
    auth: OAuth | None = None  # how to get a token for the url
    instance: Any = None  # an SDK `MCPServer` or `Server` in this process
    openapi: OpenApi | None = None  # an HTTP API, each of whose operations is a tool
    era: EraSetting = "auto"  # auto: find out; modern or legacy: do not ask
    enabled: bool = True  # false: known, but not started
    lazy: bool = False  # start at the first call instead of at once
    instances: int = 1  # of a cluster: run so many of it, on different nodes; calls go to any of them
    node_labels: tuple[str, ...] = ()  # of a cluster: only nodes that have all of these labels run it
    idle_stop: float = 0.0  # stop after so many idle seconds, start again when needed; 0 = never
    timeout: Timeout = Timeout()
    retry: Retry = Retry()
    repeatable: bool = False  # the operator's word that every tool of this server may run again
    trusted: bool = False  # the server's word about itself is enough for sharing and caching answers
    tools: Mapping[str, ToolRule] = field(default_factory=dict)  # by tool name
    shared: bool = False  # one link and one login for all callers of a gateway, even where the era knows no callers
    key_meta: str | None = None  # the `_meta` key under which the server itself honours idempotency keys
    unprocessed: tuple[int, ...] = ()  # HTTP statuses or JSON-RPC codes that this server sends before any work
    restart: Restart = Restart()
    health: Health = Health()
    limits: Limits = Limits()
    addresses: Addresses = PUBLIC  # which addresses beside the public ones its URLs may lead to
    extras: Mapping[str, Any] = field(default_factory=dict, repr=False)  # keys of the file that we do not know

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "node_labels", tuple(self.node_labels))
        ways = ("command", "url", "instance") if self.openapi is None else ("command", "instance", "openapi")
        given = [k for k in ways if getattr(self, k) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "neither"
            raise ConfigError(
                "a server needs exactly one of command, url, openapi or instance",
                evidence=f"found {found}",
                fix='write {"command": "npx", "args": [...]} or {"url": "https://…/mcp"}',
                code="E-CONFIG-SERVER",
            )
        if any(isinstance(text, Unresolved) for text in (self.command, self.cwd, *self.args)):
            raise ConfigError(
                "a secret cannot be an argument of a command",
                evidence="everybody on this machine can see the arguments of a process",
                fix="give it to the server in `env`",
                code="E-SECRETS-ARGUMENT",
            )
        if self.url is not None and not re.match(r"https?://[^/\s]", self.url):
            raise ConfigError(
                "a server's url must begin with http:// or https://",
                evidence=_scheme(self.url),
                code="E-CONFIG-URL",
            )
        if self.auth is not None and self.url is None:
            raise _bad_auth("auth is for servers with a url", "give other servers their credentials in `env`")
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers):
            raise _bad_auth("a server has either auth or an Authorization header", "remove one of them")
        if self.openapi is not None and self.openapi.key_header and self.key_meta is None:
            object.__setattr__(self, "key_meta", KEY_META)  # the link takes it from there

    @property
    def transport(self) -> Literal["stdio", "http", "sse", "openapi", "memory"]:
        if self.command is not None:
            return "stdio"
        if self.openapi is not None:
            return "openapi"
        if self.url is not None:
            return "sse" if self.sse else "http"
        return "memory"

    @property
    def place(self) -> str:
        """Where the server is, as its entry says it; may hold a secret. Empty for an object in this process."""
        if self.command is not None:
            return " ".join([self.command, *self.args])
        api = self.openapi
        return self.url or (api and (api.url or api.file or "the document in its entry")) or ""

    @property
    def reach(self) -> Addresses:
        """Which addresses may be connected to on behalf of this server: whoever opens a connection asks for it."""
        issuer = self.auth.issuer if self.auth is not None else None
        document = self.openapi.url if self.openapi is not None else None
        return self.addresses.naming(self.url, issuer, document)


ServerLike = Server | str | Mapping[str, Any] | Any
"""What `Hub({...})` takes for a server: a `Server`, a URL, a command line, a file's entry, or an SDK server object."""


def _scheme(url: str) -> str:
    """What an address begins with; the rest of it may hold a password."""
    found = re.match(r"([a-z][a-z0-9+.-]{0,20}):", url, re.IGNORECASE)
    return f"it begins with {found[1]}:" if found else "it begins with neither"


def _bad_auth(what: str, fix: str) -> ConfigError:
    return ConfigError(what, fix=fix, code="E-CONFIG-AUTH")


_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


def check_server_name(name: str) -> str:
    """Server names are `[a-z0-9-]+`, so that `server.tool` and `server__tool` split without doubt."""
    if not _NAME.fullmatch(name) or len(name) > 64:
        suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64] or "server"
        raise ConfigError(
            f"{name!r} cannot be a server's name",
            evidence="names are lower-case letters, digits and hyphens, at most 64",
            fix=f"call it {suggestion!r}",
            code="E-CONFIG-NAME",
        )
    return name


def with_defaults(server: Server, timeout: Timeout | None, retry: Retry | None) -> Server:
    """`server` with the hub's own settings where the server's were left at the default."""
    if timeout is not None and server.timeout == Timeout():
        server = replace(server, timeout=timeout)
    if retry is not None and server.retry == Retry():
        server = replace(server, retry=retry)
    return server


def field_names(cls: type[Any]) -> frozenset[str]:
    return frozenset(f.name for f in fields(cls))

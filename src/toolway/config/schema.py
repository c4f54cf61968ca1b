"""Configuration values: servers, timeouts, retries, limits, credentials. All immutable.

The comments of the fields are the reference documentation (`docs/reference/config.md`): each is on the line of its
field. Durations are in seconds. Configuration files write them as other MCP hosts do (`timeout` in milliseconds) or as
text with a unit (`"20s"`); `field_reader.py` converts both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec

from toolway.config.editing.mistakes import url_hint
from toolway.config.secret_refs import begins_with_variable, has_secret
from toolway.errors import ConfigError
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.part_api import registry
from toolway.types import Effect

if TYPE_CHECKING:
    from toolway.part_api.server_transport import TransportSettings

#: Transports of `upstream/transports`. Parts and other distributions add more.
CoreTransport = Literal["stdio", "http", "sse", "websocket", "memory"]
EraSetting = Literal["auto", "modern", "legacy", "bare"]
EnvPolicy = Literal["safe", "inherit", "none"]
Sandbox = Literal["auto", "guard", "strict", "off"]
#: Sandbox of entries that name none. "guard-if-possible" is guard with bubblewrap, and auto without it.
DefaultSandbox = Literal["auto", "guard", "guard-if-possible"]
Grant = Literal["authorization_code", "client_credentials", "exchange", "obo", "id-jag"]
#: Grants with the token of the caller: `auth.type` in files.
ON_BEHALF_GRANTS: Final = ("exchange", "obo", "id-jag")

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{0,63})://[^\s]")

MAX_TIMEOUT_S = 900.0  # seconds; a synchronous call never takes longer, longer work must be a task
MAX_ATTEMPTS = 21  # of one call: the first one and 20 retries
MIN_MEMORY_BYTES, MIN_PROCESSES = 16 << 20, 8  # of a sandbox: with less no server starts


@dataclass(frozen=True, slots=True)
class SandboxGrants:
    """Folders and hosts that a server in the "strict" sandbox may use; by default, none.

    Attributes:
        read: folders and files that it may read. Default none.
        write: folders and files that it may read and write. Default none.
        hosts: `host:port` that it may connect to, or `*.domain:port`. Default none.
        all_hosts: use this machine's network, including its loopback services. Default False.
        max_memory_bytes: for the server and everything it starts with a control group, else for each of its
            processes. Default 0: 4 GiB.
        max_processes: including their threads. A number that cannot be applied fails the start. Default 0: 1,024.

    Raises:
        ConfigError: a path is not absolute, or a host or a limit is invalid.

    Example:
        `Server(command="mcp-server-files", sandbox="strict", grants=SandboxGrants(write=("/home/me/docs",)))`
    """

    read: tuple[str, ...] = ()  # folders and files that it may read
    write: tuple[str, ...] = ()  # folders and files that it may read and write
    hosts: tuple[str, ...] = ()  # host:port that it may connect to, or *.domain:port
    all_hosts: bool = False  # use this machine's network, including its loopback services
    max_memory_bytes: int = 0  # for all its processes with a control group, else for each one; 0: 4 GiB
    max_processes: int = 0  # including their threads; an error if it cannot be applied; 0: 1,024 where possible

    def __post_init__(self) -> None:
        for name in ("read", "write"):
            paths = tuple(os.path.normpath(os.path.expanduser(path)) for path in getattr(self, name))
            object.__setattr__(self, name, paths)
            for path in paths:
                if not os.path.isabs(path):
                    raise _sandbox_error(f"sandbox.{name} needs absolute paths", path)
        hosts = tuple(host if ":" in host else f"{host}:443" for host in self.hosts)
        object.__setattr__(self, "hosts", hosts)
        for host in hosts:
            if not re.fullmatch(r"(?:\*\.)?[A-Za-z0-9.-]{1,253}:\d{1,5}", host):
                raise _sandbox_error("sandbox.network needs names of hosts with a port", host)
        for name, least in (("max_memory_bytes", MIN_MEMORY_BYTES), ("max_processes", MIN_PROCESSES)):
            value = getattr(self, name)
            if value != 0 and value < least:
                raise _sandbox_error(f"sandbox.{name} is too small", f"{value}, the minimum is {least}")


def _sandbox_error(message: str, detail: str) -> ConfigError:
    hint = 'use "sandbox": {"read": ["~/docs"], "write": ["~/notes"], "network": ["docs.python.org:443"]}'
    return ConfigError(message, detail=detail, hint=hint, code="E-CONFIG-SERVER")


class Timeout(msgspec.Struct, frozen=True):
    """Time limits of a server, in seconds.

    Attributes:
        total: one call, from receipt to result; at most 900. Default 60.
        connect: DNS lookup, TCP connect and TLS. Default 5.
        start: from starting a server to its first valid response. Default 30.
        queue: waiting for a free slot, or for a server that is down to return. Default 5.
        write: sending one request; a server that reads nothing for this long counts as hung. Default 10.

    Example:
        `Timeout(30, connect=5)`: 30 s for the whole call, 5 s of it to connect.
    """

    total: float = 60.0  # one call, from receipt to result (at most 900)
    connect: float = 5.0  # DNS lookup, TCP connect and TLS
    start: float = 30.0  # from starting a server to its first valid response
    queue: float = 5.0  # waiting for a free slot, or for a server that is down
    write: float = 10.0  # sending one request; a server that reads nothing for this long counts as hung


class RetryPolicy(msgspec.Struct, frozen=True):
    """Number of attempts and backoff for a retryable call.

    A call's effect and progress decide whether it is retryable. Backoffs are random, up to an upper bound.

    Attributes:
        max_attempts: attempts, including the first; at most 21. Default 3.
        initial_backoff: upper bound of the first backoff after a lost connection, in seconds. Default 0.05.
        backoff_multiplier: growth factor of that upper bound per attempt. Default 2.
        rate_limited_backoff: first upper bound in seconds, if a server limits the rate without Retry-After. Default 1.
        max_backoff: longest backoff in seconds. Default 20.
        attempt_timeout: seconds a running server has to answer one attempt. Default None: only the whole call is
            limited. A longer attempt is cancelled; a read is then retried within the timeout of the
            call, an unsafe call ends with an unknown outcome.

    Example:
        RetryPolicy(max_attempts=3, attempt_timeout=5.0)
    """

    max_attempts: int = 3  # attempts, including the first (at most 21)
    initial_backoff: float = 0.05  # upper bound of the first, random backoff after a lost connection, in seconds
    backoff_multiplier: float = 2.0  # how much that upper bound grows per attempt
    rate_limited_backoff: float = 1.0  # first upper bound if the server limits the rate without Retry-After
    max_backoff: float = 20.0  # longest backoff, in seconds
    attempt_timeout: float | None = None  # seconds per attempt; a READ that takes longer is retried

    def __post_init__(self) -> None:
        if self.max_attempts > MAX_ATTEMPTS:
            raise ConfigError(
                f"a call has at most {MAX_ATTEMPTS} attempts",
                detail=f"found {self.max_attempts}",
                hint=f"set at most {MAX_ATTEMPTS - 1} retries, with a longer delay between them",
                code="E-CONFIG-KEY",
            )
        if self.attempt_timeout is not None and self.attempt_timeout <= 0:
            raise ConfigError(
                "the attempt timeout must be more than 0 s",
                detail=f"found {self.attempt_timeout:g}",
                hint="leave it out for no limit per attempt",
                code="E-CONFIG-KEY",
            )


class RestartPolicy(msgspec.Struct, frozen=True):
    """Backoff and limit for restarts of a server that ended.

    Attributes:
        initial_backoff: upper bound in seconds of the first, random backoff; it doubles per restart. Default 0.1.
        max_backoff: longest backoff in seconds. Default 30.
        max_restarts: restarts allowed within `window`; with more, the server counts as failed. Default 5.
        window: seconds in which restarts are counted. Default 60.
        failed_retry_interval: seconds between attempts to start a failed server. Default 300.
        reset_after: seconds of healthy operation after which earlier restarts stop counting. Default 60.

    Example:
        RestartPolicy(max_restarts=5)
    """

    initial_backoff: float = 0.1  # upper bound of the first, random backoff; it doubles with each restart
    max_backoff: float = 30.0  # longest backoff, in seconds
    max_restarts: int = 5  # restarts allowed within `window`; with more, the server counts as failed
    window: float = 60.0  # seconds in which restarts are counted
    failed_retry_interval: float = 300.0  # seconds between attempts to start a failed server
    reset_after: float = 60.0  # seconds of healthy operation after which earlier restarts stop counting


class HealthCheck(msgspec.Struct, frozen=True):
    """Health check that detects an unresponsive server.

    A process that has sent nothing for `timeout` seconds, not even the answer to a ping, is hung and restarted. Calls
    in flight end as if the connection was lost. During a call that counts only for a server that has answered pings
    during calls before, and only after the timeout that is set for the call or the server.

    Attributes:
        interval: seconds without a message before a ping, less if `timeout` requires it; 0 never pings. Default 30.
        timeout: seconds without any message after which a process counts as hung; a third of it is the limit of one
            ping. Default 30.
        failure_threshold: consecutive failed checks before a new connection to a URL, or before a process with a
            failing health URL is restarted. Default 3.
        during_calls: restart a hung process even while a call is running. Default True.
        url: address whose GET must return 2xx, checked every `interval` seconds. Default None.

    Example:
        HealthCheck(timeout=60.0, url="https://shop.example/healthz")
    """

    interval: float = 30.0  # seconds without a message before a ping; 0 = never ping
    timeout: float = 30.0  # seconds of silence, despite a ping, after which a process counts as hung
    failure_threshold: int = 3  # failed checks of a URL in a row before reconnecting
    during_calls: bool = True  # restart a hung process even while a call is running
    url: str | None = None  # address whose GET must return 2xx, checked every `interval`

    def __post_init__(self) -> None:
        if self.url is not None and not begins_with_variable(self.url) and not re.match(r"https?://[^/\s]", self.url):
            raise ConfigError(
                "the health URL must begin with http:// or https://",
                detail=describe_scheme(self.url),
                code="E-CONFIG-URL",
            )

    @property
    def ping_timeout(self) -> float:
        """Seconds to wait for the response to one ping, or from the health URL."""
        return self.timeout / 3


_RATE_PATTERN: Final = re.compile(r"([1-9][0-9]{0,8})/(s|min|h|day)")

RateUnit: TypeAlias = Literal["s", "min", "h", "day"]
_UNIT_SECONDS: Final[Mapping[RateUnit, float]] = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}


class Rate(msgspec.Struct, frozen=True):
    """A rate limit: a number of calls per second, minute, hour or day.

    >>> Rate.parse("600/min").calls
    600
    """

    calls: Annotated[int, msgspec.Meta(ge=1)]
    per: RateUnit

    @staticmethod
    def parse(text: str) -> Rate:
        """Parse a rate such as `600/min`. Raises `ValueError` if it does not have this form."""
        found = _RATE_PATTERN.fullmatch(text)
        if found is None:
            raise ValueError(f"invalid rate {text[:40]!r}: use 10/s, 600/min, 1000/h, or 5000/day")
        return Rate(int(found[1]), cast(RateUnit, found[2]))

    def __str__(self) -> str:
        return f"{self.calls}/{self.per}"

    @property
    def period_s(self) -> float:
        return _UNIT_SECONDS[self.per]

    @property
    def per_second(self) -> float:
        """Calls per second that this rate allows on average."""
        return self.calls / self.period_s


class Limits(msgspec.Struct, frozen=True):
    """Limits of one server: concurrent calls, message size, stderr, and number of tools.

    Attributes:
        max_concurrent: calls in flight at the same time. Default 128.
        max_queued: calls that may wait for a slot; any others are rejected at once. Default 1024.
        max_message_bytes: largest message from the server, in bytes. Default 8 MiB.
        stderr_bytes: bytes of stderr to keep. Default 64 KiB.
        compression: accept gzip and deflate from an HTTP server, 20:1 at most. Default False.
        max_tools: tools listed for this server; its status reports when more are left out. Default 1000.
        max_server_requests: elicitation, sampling and roots requests the server may send during one call. Default 64.

    Example:
        Limits(max_concurrent=4, max_queued=100)
    """

    max_concurrent: int = 128  # calls in flight at the same time
    max_queued: int = 1024  # calls that may wait for a slot; any others are rejected at once
    max_message_bytes: int = 8 * 1024 * 1024  # largest message from the server, in bytes
    stderr_bytes: int = 64 * 1024  # bytes of stderr to keep
    compression: bool = False  # accept gzip and deflate from an HTTP server (20:1 at most)
    max_tools: int = 1000  # tools listed for this server; its status reports when more are left out
    max_server_requests: int = 64  # elicitation, sampling and roots requests the server may send during one call


class ToolSettings(msgspec.Struct, frozen=True):
    """Settings of one tool in a server entry, such as effect, timeout and cache.

    Attributes:
        effect: READ, IDEMPOTENT or UNSAFE; overrides the server's annotations. Default None: the annotations.
        idempotent: you declare that repeating a call is safe. Default None: the server's setting.
        cache: seconds for which a result may be reused; READ tools only, 0 is never. Default 0.
        timeout: seconds for one call of this tool. Default None: the server's timeout.
        retry: attempts and backoff of this tool. Default None: the server's retry policy.
        rate_limit: most calls of this tool in a period, as in `Server`. Default None: no limit for this tool.
        labels: `private`, `untrusted` or `sink`, for the flows of a gateway. Default none.

    Example:
        ToolSettings(effect=Effect.READ, timeout=5.0)
    """

    effect: Effect | None = None  # read, idempotent or unsafe; overrides the server's annotations
    idempotent: bool | None = None  # you declare that repeating a call is safe
    cache: float = 0.0  # seconds for which a result of a READ tool may be reused; 0 = never
    timeout: float | None = None  # seconds for one call of this tool
    retry: RetryPolicy | None = None  # attempts and backoff of this tool
    rate_limit: str | None = None  # most calls of this tool in a period, such as 100/day
    labels: tuple[str, ...] = ()  # gateway: private, untrusted or sink, for data flow rules

    def __post_init__(self) -> None:
        _check_rate(self.rate_limit)


@dataclass(frozen=True, slots=True)
class OAuth:
    """OAuth client settings for a server.

    Without them the hub discovers the authorization server and registers itself as a client.
    """

    grant: Grant = "authorization_code"  # authorization_code: a user logs in; client_credentials: the hub itself
    issuer: str | None = None  # authorization server this client is registered with; required with a secret or key
    client_id: str | None = None  # id of a client that is already registered
    client_secret: str | None = field(default=None, repr=False)  # sent only to `issuer`
    private_key: str | None = field(default=None, repr=False)  # PEM; signs instead of a secret (client_credentials)
    algorithm: str = "RS256"  # signature algorithm of `private_key`
    client_metadata_url: str | None = None  # https URL that describes this client, if the issuer supports it
    scopes: tuple[str, ...] = ()  # scopes to request instead of the ones the server suggests
    redirect_uri: str = "http://127.0.0.1:33418/callback"  # where the browser returns at the end of a login
    idp_client_id: str | None = None  # id-jag: the gateway's client id at the identity provider. In a file: idpClientId
    idp_client_secret: str | None = field(default=None, repr=False)  # secret of that client. In a file: idpClientSecret
    shared_lists: bool = False  # on behalf: all users get the same lists, so one user's lists may be shown to all

    def __post_init__(self) -> None:
        object.__setattr__(self, "scopes", tuple(self.scopes))
        secret = self.client_secret is not None or self.private_key is not None
        if secret and self.issuer is None:
            # Otherwise the server at this URL could name an issuer of its choice, and receive the secret.
            raise _auth_error("a clientSecret or privateKey needs the issuer it is for", 'add "issuer": "https://…"')
        if secret and self.client_id is None:
            raise _auth_error("a clientSecret or privateKey needs a clientId", 'add "clientId"')
        if self.is_on_behalf:
            self._check_on_behalf()
        if self.grant == "client_credentials" and not secret:
            raise _auth_error("client_credentials needs a clientSecret or a privateKey", "add one of them")
        if self.private_key is not None and self.grant != "client_credentials":
            raise _auth_error("a privateKey is used with client_credentials only", 'set "grant": "client_credentials"')
        url = self.client_metadata_url
        if url is not None and not begins_with_variable(url) and not re.match(r"https://[^/\s]+/[^\s]", url):
            raise _auth_error("clientMetadataUrl must be an https address with a path", "correct it")

    @property
    def is_on_behalf(self) -> bool:
        """Return True if each caller's token is exchanged for a token that the server accepts."""
        return self.grant in ON_BEHALF_GRANTS

    def _check_on_behalf(self) -> None:
        if self.grant == "id-jag" and (self.issuer is None or self.client_id is None):
            raise _auth_error("id-jag needs the issuer of the server, and a clientId there", 'add "issuer", "clientId"')
        if (self.idp_client_id is None) != (self.idp_client_secret is None):
            raise _auth_error("idpClientId and idpClientSecret belong together", "add the other one")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of one server with an https or wss URL: a custom CA, a client certificate."""

    ca_file: str | None = None  # CA certificates (PEM) to trust for this server, instead of the system's
    cert_file: str | None = None  # client certificate (PEM) with its chain; only for addresses of this entry
    key_file: str | None = None  # private key (PEM) of the client certificate; if not set, it is in `certFile` too
    key_password: str | None = field(default=None, repr=False)  # password of an encrypted private key

    def __post_init__(self) -> None:
        if not self.files:
            raise _tls_error("tls has neither a caFile nor a certFile", "add one, or remove tls")
        if self.cert_file is None and (self.key_file is not None or self.key_password is not None):
            raise _tls_error("a tls.keyFile or tls.keyPassword needs a tls.certFile", 'add "certFile"')

    @property
    def files(self) -> dict[str, str]:
        """Return the paths of the CA, certificate and key files, by config key."""
        given = {"caFile": self.ca_file, "certFile": self.cert_file, "keyFile": self.key_file}
        return {key: path for key, path in given.items() if path is not None}


@dataclass(frozen=True, slots=True)
class Server:
    """Configuration of one server: exactly one of command, url, instance or transport_settings.

    The settings of an HTTP API (`OpenApi`) may have a `url`, too. It overrides the `servers` of the document.

    Attributes:
        command: program to start, never through a shell. Default None.
        args: arguments of the program. Default none.
        env: environment variables, added to the ones `env_policy` allows. Default none.
        cwd: working directory of the program. Default None: this process's working directory.
        env_policy: "safe" passes base, proxy and CA variables, "inherit" everything, "none" base only. Default "safe".
        sandbox: "guard" hides the folders of Toolway and of keys from the process, "auto" only those of Toolway and if
            that hides nothing else, "strict" everything that `grants` does not name, "off" nothing. Default "auto".
        grants: folders and hosts for the "strict" sandbox. Default none.
        url: Streamable HTTP or WebSocket (ws, wss) endpoint, an address with the scheme of an installed transport,
            or the base URL of an HTTP API. Default None.
        sse: the url uses the deprecated HTTP+SSE transport of 2024-11-05. Default False: detect it.
        message_url: address for messages of HTTP+SSE, on the origin of the url. Default None: the stream provides it.
        headers: headers sent with every HTTP request. Default none.
        auth: OAuth settings for the url. Default None: discovered if the server asks for a login.
        tls: custom CA and client certificate for the url. Default None: the system's CAs.
        instance: SDK `MCPServer` or `Server` object in this process, or a `WorkflowServer`. Default None.
        transport_settings: settings for the transport of a part, such as `OpenApi`, or of another distribution. In
            files they have the key of the transport, such as `openapi`. Default None.
        era: protocol era, "modern", "legacy" or "bare" (no handshake), without a probe. Default "auto": it is detected.
        enabled: False configures the server without starting it. Default True.
        lazy: start on the first call instead of immediately. Default False.
        instances: cluster: number of instances, on different nodes; a call goes to any of them. Default 1.
        node_labels: cluster: only nodes with all of these labels run the server. Default none.
        idle_timeout: seconds without a call before the server stops until the next call; 0 is never. Default 0.
        timeout: time limits. Default `Timeout()`.
        retry: attempts and backoff of retryable calls. Default `RetryPolicy()`.
        rate_limit: most calls in any period: "5/s", "10/min", "1000/h" or "100/day". Default None: no limit.
        idempotent: you declare that repeating a call is safe for every tool of this server. Default False.
        trusted: the server's own annotations are enough to coalesce calls and cache results. Default False.
        untrusted: results may contain untrusted content, such as web pages or emails. After one, an agent needs
            approval for unsafe tools on other servers. Default False.
        labels: `private`, `untrusted` or `sink`, for all tools of the server in a gateway's flows. Default none.
        redact: gateway: what is removed from results besides the server's secrets: `secrets`, `email`, `card`,
            `iban`, `ssn`. Default none.
        tools: settings by tool name. Default none.
        allowed_tools: names or patterns (`*`, `?`) of the tools that may be used. Default None: all.
        denied_tools: names or patterns of tools that are never listed or called, even if allowed. Default none.
        validate_arguments: check arguments against the tool's schema before they are sent. Default True.
        vendor_methods: gateway: methods of no specification allowed at `/mcp/server/NAME`, such as `x-acme/*`.
            Default none.
        share_connection: gateway: all callers share one connection and login, even in the legacy era. Default False.
        idempotency_meta_key: `_meta` key in which the server accepts idempotency keys. Default None: it accepts none.
        not_processed_codes: HTTP statuses or JSON-RPC codes that prove the request was not processed. Default none.
        restart: backoff and limit for restarts. Default `RestartPolicy()`.
        health: health check. Default `HealthCheck()`.
        limits: concurrent calls, message size, stderr, number of tools. Default `Limits()`.
        lock: False runs an `npx` or `uvx` entry without its lock, even if a `toolway.lock` exists. Default True.
        guard_facts: what files next to the config file, such as `toolway.lock`, say about the entry. Default none.
        env_file: file with more environment variables, read on each start; `env` wins. Default None.
        network_policy: non-public addresses that the URLs of this server may resolve to. Default `PUBLIC_ONLY`.
        extras: unknown keys in the configuration file; they have no effect. Default none.

    Raises:
        ConfigError: the fields contradict each other, or a value is invalid.

    Example:
        `Server(command="npx", args=("-y", "server-github"), timeout=Timeout(20))`
    """

    command: str | None = None  # program to start, never through a shell
    args: tuple[str, ...] = ()  # arguments of the program
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # added to the variables that `env_policy` allows
    cwd: str | None = None  # working directory of the program
    env_policy: EnvPolicy = "safe"  # safe: base, proxy and CA variables; inherit: everything; none: base only
    sandbox: Sandbox = "auto"  # guard: hide own folders and keys; strict: all but `grants`; auto: own folders; off
    grants: SandboxGrants = field(default_factory=SandboxGrants)  # for the strict sandbox; in files, {"write": […]}
    url: str | None = None  # a Streamable HTTP or WebSocket endpoint; with `openapi` the base URL of the API
    sse: bool = False  # the url uses the deprecated HTTP+SSE transport of 2024-11-05; if false, it is detected
    message_url: str | None = None  # HTTP+SSE: address for messages, if the event stream does not provide it
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with every HTTP request
    auth: OAuth | None = None  # OAuth settings for the url
    tls: Tls | None = None  # custom CA and client certificate for the url
    instance: Any = None  # an SDK `MCPServer` or `Server` object in this process, or a `WorkflowServer`
    transport_settings: TransportSettings | None = None  # key `openapi`: an HTTP API; or of an installed transport
    era: EraSetting = "auto"  # protocol era; auto: detect it; modern, legacy or bare (no handshake): do not probe
    enabled: bool = True  # false: configured, but not started
    lazy: bool = False  # start on the first call instead of immediately
    instances: int = 1  # cluster: number of instances, on different nodes; a call goes to any of them
    node_labels: tuple[str, ...] = ()  # cluster: only nodes with all of these labels run the server
    idle_timeout: float = 0.0  # seconds without a call before the server stops until the next call; 0 = never
    timeout: Timeout = field(default_factory=Timeout)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    rate_limit: str | None = None  # most calls in any period: 5/s, 10/min, 1000/h or 100/day
    idempotent: bool = False  # you declare that repeating a call is safe for every tool of this server
    trusted: bool = False  # the server's own annotations are enough to coalesce calls and cache results
    untrusted: bool = False  # results may contain untrusted content, so agents ask before unsafe calls elsewhere
    labels: tuple[str, ...] = ()  # gateway: private, untrusted or sink, for all tools of this server
    redact: tuple[str, ...] = ()  # gateway: what to remove from results: secrets, email, card, iban, ssn
    tools: Mapping[str, ToolSettings] = field(default_factory=dict)  # by tool name
    allowed_tools: tuple[str, ...] | None = None  # `tools.allow` in files: only these names or patterns may be used
    denied_tools: tuple[str, ...] = ()  # `tools.deny` in files: names or patterns that are never listed or called
    validate_arguments: bool = True  # check arguments against the tool's schema before they are sent
    vendor_methods: tuple[str, ...] = ()  # gateway: methods outside the specification to let through: x-acme/*
    share_connection: bool = False  # gateway: all callers share one connection and login, even in the legacy era
    idempotency_meta_key: str | None = None  # `_meta` key in which the server accepts idempotency keys
    not_processed_codes: tuple[int, ...] = ()  # HTTP statuses or JSON-RPC codes: the request was not processed
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    health: HealthCheck = field(default_factory=HealthCheck)
    limits: Limits = field(default_factory=Limits)
    lock: bool = True  # false: run npx or uvx without its lock, even if a `toolway.lock` exists
    guard_facts: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # from files such as `toolway.lock` next to the config file, by part; not a key in files
    env_file: str | None = None  # file with more environment variables, read on each start; `env` wins
    network_policy: NetworkPolicy = PUBLIC_ONLY  # non-public addresses that the URLs of this server may resolve to
    extras: Mapping[str, Any] = field(default_factory=dict, repr=False)  # unknown keys in the configuration file

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "node_labels", tuple(self.node_labels))
        _check_rate(self.rate_limit)
        object.__setattr__(self, "denied_tools", check_tool_names("denied_tools", self.denied_tools))
        if self.vendor_methods:
            object.__setattr__(self, "vendor_methods", check_vendor_methods(self.vendor_methods))
        if self.allowed_tools is not None:
            object.__setattr__(self, "allowed_tools", check_tool_names("allowed_tools", self.allowed_tools))
        settings = self.transport_settings
        alternatives = ["command", "url", "instance", "transport_settings"]
        if settings is not None and settings.takes_url:
            alternatives.remove("url")
        given = [k for k in alternatives if getattr(self, k) is not None]
        if len(given) != 1:
            names = (each if each != "transport_settings" or settings is None else settings.kind for each in given)
            found = " and ".join(names) or "neither"
            example = 'use {"command": "npx", "args": [...]} or {"url": "https://…/mcp"}'
            raise ConfigError(
                "a server needs exactly one of command, url, openapi or instance",
                detail=f"found {found}",
                hint="keep one: command starts a program, url connects to a running server" if given else example,
                code="E-CONFIG-SERVER",
            )
        if any(has_secret(text) for text in (self.command, self.cwd, self.env_file, *self.args)):
            raise ConfigError(
                "a secret cannot be a command argument",
                detail="other users on this machine can see a process's arguments",
                hint="set it in `env`",
                code="E-SECRETS-ARGUMENT",
            )
        is_unset = begins_with_variable(self.url)
        is_usable = is_unset or self.url is None or re.match(r"(?:https?|wss?)://[^/\s]", self.url)
        if self.url is not None and not is_usable and not (self.own_scheme and registry.transport(self.own_scheme)):
            raise ConfigError(
                "the url of a server must begin with http://, https://, ws:// or wss://",
                detail=describe_scheme(self.url),
                hint=url_hint(self.url),
                code="E-CONFIG-URL",
            )
        if self.message_url is not None and not self.sse:
            raise ConfigError(
                "messageUrl only works with HTTP+SSE servers",
                hint='set "type": "sse", or remove messageUrl',
                code="E-CONFIG-URL",
            )
        if settings is not None:
            if registry.transport(settings.kind) is None:
                raise ConfigError(f"the transport {settings.kind} is not installed", code="E-CONFIG-TYPE")
            settings.check(self)
        if self.tls is not None and self.url is None and (settings is None or not settings.urls):
            raise _tls_error("tls is for servers with a url", "remove it, or add a url")
        if self.auth is not None and self.http_url is None:
            raise _auth_error("auth is for servers with a url", "set the credentials of other servers in `env`")
        if self.auth is not None and self.auth.is_on_behalf and self.share_connection:
            raise _auth_error(
                "a connection on behalf of callers cannot be shared", "remove shareConnection, or pick another auth"
            )
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers):
            raise _auth_error("a server has either auth or an Authorization header", "remove one of them")
        if settings is not None and settings.idempotency_meta_key and self.idempotency_meta_key is None:
            object.__setattr__(self, "idempotency_meta_key", settings.idempotency_meta_key)

    @property
    def transport(self) -> CoreTransport | str:
        if self.command is not None:
            return "stdio"
        if self.transport_settings is not None:
            return self.transport_settings.kind
        if self.url is not None:
            is_websocket = self.url.startswith(("ws:", "wss:"))
            return "websocket" if is_websocket else self.own_scheme or ("sse" if self.sse else "http")
        return "memory"

    @property
    def own_scheme(self) -> str:
        """The scheme of the url if it is of another distribution's transport; "" for HTTP and WebSocket."""
        if self.url is None or self.url.startswith(("http:", "https:", "ws:", "wss:")):
            return ""
        found = _SCHEME.match(self.url)
        return found[1] if found is not None else ""

    @property
    def http_url(self) -> str | None:
        """The url with http instead of ws: a WebSocket begins as an HTTP request to it. None for other schemes."""
        if self.url is None or self.own_scheme:
            return None
        return "http" + self.url[2:] if self.url.startswith(("ws:", "wss:")) else self.url

    @property
    def location(self) -> str:
        """Command line, URL or other address of the server, for messages. It may contain a secret.

        Empty for an SDK server object in this process.
        """
        if self.command is not None:
            return " ".join([self.command, *self.args])
        return self.url or (self.transport_settings.location if self.transport_settings is not None else "")

    @property
    def effective_network_policy(self) -> NetworkPolicy:
        """Network policy for all connections of this server.

        It also allows localhost and private IP literals in the URLs of the server, its OAuth issuer, its transport's
        settings and its health check.
        """
        return self.network_policy.allowing(*self.entry_urls)

    @property
    def entry_urls(self) -> tuple[str, ...]:
        """All URLs that the entry names: server, OAuth issuer, settings of its transport, health check."""
        issuer = self.auth.issuer if self.auth is not None else None
        urls = self.transport_settings.urls if self.transport_settings is not None else ()
        return tuple(url for url in (self.url, issuer, *urls, self.health.url) if url is not None)


ServerLike = Server | str | Sequence[str] | Mapping[str, Any] | Any
"""Accepted values for a server in `Hub({...})`: `Server`, URL, command line, its words, file entry or server object."""


def describe_scheme(url: str) -> str:
    """Return a label with only the scheme of a URL: the rest may contain a password."""
    found = re.match(r"([a-z][a-z0-9+.-]{0,20}):", url, re.IGNORECASE)
    return f"it begins with {found[1]}:" if found else "it begins with neither"


def check_tool_names(key: str, names: Iterable[str]) -> tuple[str, ...]:
    """Check a list of tool names or patterns and return it as a tuple.

    Raises `ConfigError` if it is not a list of strings.
    """
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in found):
        raise ConfigError(f"{key} must be a list of names or patterns", code="E-CONFIG-KEY")
    return found


# Vendor methods: methods of no specification, which an entry lets pass at the endpoint of its server.
_VENDOR_METHOD: Final = re.compile(r"[A-Za-z0-9._$/-]{1,128}")
_VENDOR_PATTERN: Final = re.compile(r"[A-Za-z0-9._$/*?-]{1,128}")
#: First parts of protocol methods of any version, and of ours. No entry can let them through.
_RESERVED_NAMESPACES: Final = frozenset(
    {
        *("initialize", "initialized", "ping", "server", "tools", "resources", "prompts", "completion", "logging"),
        *("sampling", "elicitation", "roots", "tasks", "subscriptions", "notifications", "cancelled", "progress"),
        *("message", "toolway"),
    }
)


def is_vendor_method(method: str) -> bool:
    """Return True if a method is well-formed and is neither a protocol method nor one of Toolway's.

    A notification may begin with `notifications/`.
    """
    namespace = method.removeprefix("notifications/").partition("/")[0]
    return (
        _VENDOR_METHOD.fullmatch(method) is not None
        and namespace not in _RESERVED_NAMESPACES
        and not method.startswith("rpc.")
    )


def passes_vendor_method(method: str, patterns: Iterable[str]) -> bool:
    """Return True if `method` is a vendor method that matches one of the patterns."""
    return is_vendor_method(method) and any(fnmatchcase(method, pattern) for pattern in patterns)


def check_vendor_methods(patterns: Iterable[str]) -> tuple[str, ...]:
    """Check an entry's patterns and return them as a tuple.

    Raises `ConfigError` if one is not a pattern, or can only match methods of the protocol or Toolway.
    """
    found = tuple(patterns)
    for pattern in found:
        is_text = isinstance(pattern, str) and not isinstance(patterns, str)
        if not is_text or _VENDOR_PATTERN.fullmatch(pattern) is None:
            raise ConfigError(
                "vendorMethods must be a list of methods or patterns",
                hint='use "vendorMethods": ["x-acme/*"]',
                code="E-CONFIG-KEY",
            )
        namespace = pattern.removeprefix("notifications/").partition("/")[0]
        if namespace in _RESERVED_NAMESPACES or pattern.startswith("rpc."):
            raise ConfigError(
                f"vendorMethods cannot name {pattern}",
                detail="MCP methods and Toolway's methods have their own rules",
                hint="remove it",
                code="E-CONFIG-KEY",
            )
    return found


def _tls_error(message: str, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint, code="E-CONFIG-TLS")


def _check_rate(text: str | None) -> None:
    try:
        if text is not None:
            Rate.parse(text)
    except ValueError as exc:
        message = "invalid rate limit"
        raise ConfigError(message, detail=str(exc), hint='use "rateLimit": "100/day"', code="E-CONFIG-KEY") from None


def _auth_error(message: str, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint, code="E-CONFIG-AUTH")


_SERVER_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


def check_server_name(name: str) -> str:
    """Return `name` if it is a valid server name, else raise `ConfigError`.

    Names are `[a-z0-9-]+`, so `server.tool` and `server__tool` split unambiguously.
    """
    if not _SERVER_NAME.fullmatch(name) or len(name) > 64:
        suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64] or "server"
        raise ConfigError(
            f"invalid server name {name!r}",
            detail="names use lowercase letters, digits, and hyphens, at most 64 characters",
            hint=f"call it {suggestion!r}",
            code="E-CONFIG-NAME",
        )
    return name


def with_defaults(server: Server, timeout: Timeout | None, retry: RetryPolicy | None) -> Server:
    """Return `server` with the hub's timeout and retry policy in place of the defaults.

    A server with its own timeout or retry policy keeps it.
    """
    if timeout is not None and server.timeout == Timeout():
        server = replace(server, timeout=timeout)
    if retry is not None and server.retry == RetryPolicy():
        server = replace(server, retry=retry)
    return server


class ConfigIssue(msgspec.Struct, frozen=True):
    """Problem found in a configuration file, with its location and a hint for the user.

    With severity `error` the server is left out; with `warning` and `note` it is used.
    """

    server: str  # as written in the file; empty if the issue is about the file
    message: str
    detail: str = ""
    hint: str = ""
    code: str = "E-CONFIG"
    severity: Literal["error", "warning", "note"] = "error"
    file: str = ""
    line: int | None = None

    @classmethod
    def from_error(cls, error: ConfigError, server: str = "") -> ConfigIssue:
        return cls(server, error.message, error.detail, error.hint, error.code, file=error.file, line=error.line)

    @property
    def location(self) -> str:
        """File and line of the issue, such as `mcp.json:12`; without the line if it is unknown."""
        return f"{self.file}:{self.line}" if self.file and self.line else self.file

    def __str__(self) -> str:
        where = self.location or self.server
        if self.file and self.server and not self.line:  # an entry of a list has no line
            where = f"{self.file}, {self.server}"
        text = f"{where}: {self.message}" if where else self.message
        if self.detail:
            text += f": {self.detail}"
        if self.hint:
            text += f" → {self.hint}"
        return f"{text} [{self.code}]"

"""Cluster options from command-line flags, environment variables and secret files.

Nothing is connected here, and neither `nats` nor `sqlalchemy` is imported: errors are reported before anything starts.
Secrets (cluster key, passwords in URLs) are left out of every `repr` and masked in all shown text.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from toolway.cluster.keys import TENANT_KEY_PREFIX, derive_tenant_key
from toolway.config.locations import add_private_file
from toolway.errors import ConfigError
from toolway.secrets.detection import remember_secret

_REQUIRED_PACKAGES: Final = ("nats", "sqlalchemy", "alembic", "psycopg", "aiosqlite")
ADVERTISE_NONE: Final = "none"  # value of --advertise: other nodes reach this one over NATS only
MAX_NATS_URLS: Final = 32  # NATS URLs
MAX_LABELS: Final = 32
MAX_CAPACITY: Final = 100_000
MAX_NAME_CHARS: Final = 63  # the limit of pod names in Kubernetes
CLUSTER_KEY_BYTES: Final = 32
DEFAULT_TENANT: Final = "default"
MAX_SECRET_FILE_BYTES: Final = 4096  # bytes of a file that contains one secret

# Environment variable for each flag. The first one enables cluster mode, as --cluster does.
ENV_VARIABLES: Final = {
    "cluster": "TOOLWAY_CLUSTER",
    "database": "TOOLWAY_DATABASE",
    "cluster_name": "TOOLWAY_CLUSTER_NAME",
    "tenant": "TOOLWAY_TENANT",
    "node": "TOOLWAY_NODE",
    "advertise": "TOOLWAY_ADVERTISE",
    "capacity": "TOOLWAY_CAPACITY",
    "labels": "TOOLWAY_LABELS",
    "cluster_key_file": "TOOLWAY_CLUSTER_KEY_FILE",
    "nats_credentials": "TOOLWAY_NATS_CREDENTIALS",
    "insecure_nats": "TOOLWAY_INSECURE_NATS",
}
CLUSTER_KEY_VARIABLE: Final = "TOOLWAY_CLUSTER_KEY"
DATABASE_FILE_VARIABLE: Final = "TOOLWAY_DATABASE_FILE"
PASSWORD_VARIABLE: Final = "PGPASSWORD"  # the name of the variable of libpq

_NAME_PATTERN: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a NATS subject token and a host name
_LABEL_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_=/:-]{0,62}")
_NATS_SCHEMES: Final = frozenset({"nats", "tls", "ws", "wss"})
_TRUE_WORDS: Final = frozenset({"1", "true", "yes"})


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker's place (`toolway serve --workers N`): its number, and the folder of all workers' sockets."""

    number: int  # worker 0 owns the servers, and answers /admin and /metrics for all
    folder: str

    @property
    def name(self) -> str:
        """Return the first part of the node id, which stays the same when the worker restarts."""
        return f"worker{self.number}"

    @property
    def socket_path(self) -> str:
        return f"{self.folder}/{self.number}.http"

    @property
    def bus_path(self) -> str:
        return f"{self.folder}/{self.number}.bus"

    @property
    def is_first(self) -> bool:
        return self.number == 0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Validated options of one cluster node, from flags and environment variables."""

    nats_urls: tuple[str, ...] = field(repr=False)  # URLs of one NATS cluster; they may contain passwords
    database_url: str = field(repr=False)  # postgresql://…, or sqlite:///file to try it on one machine
    tenant_key: bytes = field(repr=False)  # key of the tenant: seals data between nodes, clients and the database
    nats_credentials: str = ""  # NATS .creds file with the user's JWT and seed; "" = credentials in the URLs
    cluster_name: str = "toolway"  # cluster name; separates clusters on one NATS
    tenant: str = DEFAULT_TENANT  # tenant that owns the served servers
    node_name: str = "node"  # node name; the node id adds a random suffix (`new_id`)
    advertise_url: str | None = None  # HTTP URL for other nodes; "" = NATS only; None = detect
    capacity: int = 1000  # maximum number of owned servers; nodes with more get a larger share
    labels: tuple[str, ...] = ()  # labels that servers may require of their node
    worker: WorkerPlace | None = None  # set if the node is a worker of one machine, without NATS

    def new_id(self) -> str:
        """Return a new unique node id: the node name and a random suffix.

        Call it in the process that joins, never before a fork: two processes with one id would count as one node.
        """
        return f"{self.node_name}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Flags:
    """Cluster flags of the command line; None if not given."""

    cluster: str | None = None  # NATS URLs, separated by commas
    database: str | None = None
    cluster_name: str | None = None
    tenant: str | None = None
    node: str | None = None
    advertise: str | None = None
    capacity: str | int | None = None
    labels: str | None = None
    cluster_key_file: str | None = None
    nats_credentials: str | None = None
    insecure_nats: bool | None = None  # NATS may let everybody in


def read_options(flags: Flags, environ: Mapping[str, str]) -> ClusterOptions | None:
    """Return the cluster options from flags and environment, or None if --cluster is not requested.

    Raises `ConfigError` if an option is missing or invalid.
    """
    given = {
        name: _flag_or_variable(getattr(flags, name), environ.get(variable)) for name, variable in ENV_VARIABLES.items()
    }
    if given["cluster"] is None:
        _reject_stray_flags(flags)
        return None
    tenant = parse_name("--tenant", given["tenant"] or DEFAULT_TENANT)
    options = ClusterOptions(
        nats_urls=parse_nats_urls(given["cluster"]),
        database_url=read_database_url(given["database"], environ),
        tenant_key=_read_tenant_key(given["cluster_key_file"], environ, tenant),
        nats_credentials=_check_credentials_file(given["nats_credentials"]),
        cluster_name=parse_name("--cluster-name", given["cluster_name"] or "toolway"),
        tenant=tenant,
        node_name=parse_name("--node", given["node"] or _default_node_name()),
        advertise_url=parse_advertise_url(given["advertise"]),
        capacity=parse_capacity(given["capacity"]),
        labels=parse_labels(given["labels"] or ""),
    )
    if (given["insecure_nats"] or "").lower() not in _TRUE_WORDS:
        _check_nats_authentication(options)
    for address in (*options.nats_urls, options.database_url):
        for secret in url_secrets(address):
            remember_secret(secret)
    return options


def _check_nats_authentication(options: ClusterOptions) -> None:
    """Raise `ConfigError` if a NATS server on another machine is used without authentication.

    Such a server lets everybody in: anyone could intercept or end calls.
    """
    for url in options.nats_urls:
        parts = urlsplit(url)
        if not options.nats_credentials and not parts.username and not _is_loopback(parts.hostname or ""):
            raise option_error(
                "NATS is used without authentication",
                f"{parts.hostname} is another machine, and its URL has neither a user nor a token",
                "add a user or a token: --cluster nats://USER:PASSWORD@HOST:4222, or --nats-credentials FILE;"
                " if only nodes reach this NATS: --insecure-nats",
                "E-NATS-AUTH",
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _flag_or_variable(flag: object, variable: str | None) -> str | None:
    """Return the value of a flag, or else of its environment variable ("" counts as not set)."""
    return str(flag) if flag is not None else variable or None


def _reject_stray_flags(flags: Flags) -> None:
    """Raise `ConfigError` if a cluster flag is given without --cluster: it would have no effect."""
    for name in Flags.__dataclass_fields__:
        if getattr(flags, name) is not None:
            raise option_error(
                f"--{name.replace('_', '-')} requires --cluster",
                "--cluster is missing",
                "add the NATS URL of the cluster: --cluster nats://HOST:4222",
            )


def _default_node_name() -> str:
    """Return the host name of this machine or container, reduced to valid characters."""
    found = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")
    return found[:MAX_NAME_CHARS].rstrip("-") or "node"


def read_database_url(text: str | None, environ: Mapping[str, str]) -> str:
    """Return the cluster database URL from a flag or the environment. Raises `ConfigError` if missing."""
    text = text or environ.get(ENV_VARIABLES["database"]) or None
    file = environ.get(DATABASE_FILE_VARIABLE)
    if text is None and file:
        text = _read_secret_file(file, f"${DATABASE_FILE_VARIABLE}")
    if text is None:
        raise option_error(
            "cluster database missing",
            "neither --database nor $TOOLWAY_DATABASE is set; a cluster keeps its shared state there",
            "set it: --database postgresql://USER@HOST/NAME",
        )
    return _add_password(parse_database_url(text), environ.get(PASSWORD_VARIABLE, ""))


def _add_password(url: str, password: str) -> str:
    """Add `$PGPASSWORD` to a URL with a user but no password, as libpq does.

    The variable can then be removed from the environment, which servers may inherit.
    """
    parts = urlsplit(url)
    if not password or parts.scheme != "postgresql" or not parts.username or parts.password is not None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


# -- secrets ----------------------------------------------------------------------------------------------------------


def generate_cluster_key() -> str:
    """Return a new random cluster key as hexadecimal text."""
    return secrets.token_hex(CLUSTER_KEY_BYTES)


def tenant_key_from_env(environ: Mapping[str, str]) -> bytes | None:
    """Return the tenant key set by environment variables, or None.

    Raises `ConfigError` if the key is invalid or its file is not readable.
    """
    file = environ.get(ENV_VARIABLES["cluster_key_file"])
    if not file and not environ.get(CLUSTER_KEY_VARIABLE):
        return None
    return _read_tenant_key(file, environ, environ.get(ENV_VARIABLES["tenant"]) or DEFAULT_TENANT)


def read_cluster_key(file: str | None, environ: Mapping[str, str]) -> bytes:
    """Return the cluster key from a file or the environment, for what a tenant key cannot do.

    Raises `ConfigError` if there is none, it is invalid, or only the key of a tenant was given.
    """
    text, source = _read_key_text(file or environ.get(ENV_VARIABLES["cluster_key_file"]), environ)
    if text.startswith(TENANT_KEY_PREFIX):
        raise option_error(
            f"cluster key required: {source}",
            "it contains the key of one tenant",
            "use the file that `toolway cluster keygen` wrote: --cluster-key-file cluster.key",
            "E-CLUSTER-KEY",
        )
    return _parse_key(text, source)


def _read_tenant_key(file: str | None, environ: Mapping[str, str], tenant: str) -> bytes:
    """Return a tenant's key, as given or derived from the cluster key, which is not kept."""
    text, source = _read_key_text(file, environ)
    if not text.startswith(TENANT_KEY_PREFIX):
        return derive_tenant_key(_parse_key(text, source), tenant)
    _, _, named = text.partition(":")
    owner, _, key = named.partition(":")
    if owner != tenant:
        raise option_error(
            f"key of another tenant: {source}",
            f"it is the key for {owner[:MAX_NAME_CHARS]!r}, and this node serves {tenant!r}",
            f"start the node with --tenant {owner[:MAX_NAME_CHARS]}, or with: toolway cluster tenant-key {tenant}",
            "E-CLUSTER-KEY",
        )
    return _parse_key(key, source)


def _read_key_text(file: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the text of the cluster or tenant key, and where it came from."""
    source = file or f"${CLUSTER_KEY_VARIABLE}"
    text = _read_secret_file(file, "--cluster-key-file") if file else environ.get(CLUSTER_KEY_VARIABLE, "").strip()
    if not text:
        raise option_error(
            "cluster key missing",
            f"{source} is empty" if file else f"neither --cluster-key-file nor {source} is set",
            "create a key and give it to every node: toolway cluster keygen --out cluster.key",
            "E-CLUSTER-KEY",
        )
    remember_secret(text)
    return text, source


def _parse_key(text: str, source: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != CLUSTER_KEY_BYTES:
        raise option_error(
            f"invalid cluster key: {source}",
            f"it is not {2 * CLUSTER_KEY_BYTES} hexadecimal digits",
            "create a key and give it to every node: toolway cluster keygen --out cluster.key",
            "E-CLUSTER-KEY",
        )
    remember_secret(text)
    return key


def _check_credentials_file(file: str | None) -> str:
    """Return the path of the NATS `.creds` file after a check, or "" if none is given.

    Raises `ConfigError` if the file is not readable or invalid.
    """
    if file is not None:
        _read_secret_file(file, "--nats-credentials")
        from toolway.cluster.bus import nats_auth_options

        try:
            nats_auth_options(file)
        except ValueError as exc:
            hint = "create one for the NATS account of this tenant: nsc generate creds --account TENANT --name USER"
            raise option_error(f"invalid --nats-credentials file: {file}", str(exc), hint) from None
    return file or ""


def _read_secret_file(file: str, option: str) -> str:
    try:
        with open(file, "rb") as opened:
            add_private_file(file)
            return opened.read(MAX_SECRET_FILE_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror or str(exc) if isinstance(exc, OSError) else "the content is not ASCII text"
        raise option_error(f"{option} file unreadable: {file}", reason, "use a file that this user may read") from None


# -- option values -----------------------------------------------------------------------------------------------------


# Each function raises `ConfigError` for an invalid value. URLs in error messages contain no password.


def parse_nats_urls(text: str) -> tuple[str, ...]:
    """Parse the comma-separated NATS URLs of --cluster. Raises `ConfigError` if one is invalid."""
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    if not 0 < len(found) <= MAX_NATS_URLS:
        raise option_error(
            "--cluster has no NATS URL" if not found else "--cluster has too many URLs", f"{len(found)} URLs"
        )
    return tuple(_parse_nats_url(each) for each in found)


def _parse_nats_url(text: str) -> str:
    url = text if "://" in text else f"nats://{text}"
    scheme, host = _scheme_and_host(url)
    if scheme not in _NATS_SCHEMES or not host:
        raise option_error("--cluster is not a NATS URL", _mask_url(text), "use this form: --cluster nats://HOST:4222")
    return url


def parse_database_url(text: str) -> str:
    """Return the URL of --database in the form `postgresql://…` or `sqlite:///…`.

    `postgres://` and driver suffixes of other programs are accepted. Raises `ConfigError` for another database.
    """
    url = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", text)
    if not url.startswith("postgresql://") and not re.match(r"sqlite:///+[^/]", url):
        raise option_error(
            "--database is not a PostgreSQL URL",
            _mask_url(text),
            "use this form: --database postgresql://USER@HOST/NAME",
        )
    return url


def parse_advertise_url(text: str | None) -> str | None:
    """Parse --advertise: the URL of this node for other nodes, "" for `none`, None if not given.

    Raises `ConfigError` if it is not the HTTP origin of a gateway.
    """
    if text is None:
        return None
    if text.lower() == ADVERTISE_NONE:
        return ""
    scheme, host = _scheme_and_host(text)
    parts = urlsplit(text) if scheme in ("http", "https") and host else None
    if parts is None or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise option_error(
            "--advertise is not a gateway URL",
            _mask_url(text),
            f"use this form: --advertise http://HOST:8765, or --advertise {ADVERTISE_NONE}"
            " if other nodes cannot reach it",
        )
    return f"{scheme}://{parts.netloc}"


def _scheme_and_host(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a number
        return parts.scheme, parts.hostname or ""
    except ValueError:
        return "", ""


def _mask_url(text: str) -> str:
    return f"***@{text.rpartition('@')[2]}"[:200] if "@" in text else text[:200]


def url_secrets(url: str) -> set[str]:
    """Return the secrets in a URL: password or NATS token, both raw and percent-decoded."""
    parts = urlsplit(url)
    found = parts.password or (parts.username if parts.scheme in _NATS_SCHEMES else None)
    return {found, unquote(found)} if found else set()


def parse_name(flag: str, text: str) -> str:
    """Return a valid cluster, tenant or node name. Raises `ConfigError` for an invalid one."""
    if not _NAME_PATTERN.fullmatch(text):
        raise option_error(
            f"{flag} is not a valid name",
            f"{text[:80]!r}",
            f"use lower-case letters, digits and hyphens, at most {MAX_NAME_CHARS} characters",
        )
    return text


def parse_capacity(text: str | None) -> int:
    """Parse --capacity, the maximum number of servers that this node owns (default 1000).

    Raises `ConfigError` if it is not a number in range.
    """
    if text is None:
        return 1000
    if not text.isdecimal() or not 0 < int(text) <= MAX_CAPACITY:
        raise option_error("--capacity is not valid", f"{text[:80]!r}", f"use a number from 1 to {MAX_CAPACITY:,}")
    return int(text)


def parse_labels(text: str) -> tuple[str, ...]:
    """Parse the comma-separated --labels of this node; sorts them and removes duplicates.

    Raises `ConfigError` if a label is invalid or there are too many.
    """
    found = sorted({each.strip() for each in text.split(",") if each.strip()})
    bad = [each for each in found if not _LABEL_PATTERN.fullmatch(each)]
    if bad or len(found) > MAX_LABELS:
        raise option_error(
            "--labels are not valid",
            f"{bad[0][:80]!r}" if bad else f"{len(found)} labels",
            f"use at most {MAX_LABELS} labels separated by commas, such as: --labels gpu,region=eu",
        )
    return tuple(found)


def option_error(
    message: str, detail: str, hint: str = "see: toolway serve --help", code: str = "E-CLUSTER"
) -> ConfigError:
    """Return a `ConfigError` for an invalid cluster option of `toolway serve`."""
    return ConfigError(message, detail=detail, hint=hint, code=code)


def require_cluster_extra() -> None:
    """Raise `ConfigError` if the optional dependencies `toolway[cluster]` are not installed."""
    missing = [name for name in _REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "the cluster dependencies are not installed",
            detail=f"missing packages: {', '.join(missing)}",
            hint="install it: pip install 'toolway[cluster]'",
            code="E-CLUSTER-MISSING",
        )

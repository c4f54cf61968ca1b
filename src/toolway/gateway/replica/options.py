"""What a gateway must be told to take part in a cluster: from flags, else from the environment, else from files.

Nothing is connected here, and neither `nats` nor `sqlalchemy` is loaded: what is wrong is said before anything starts.
What is secret (the key, passwords in addresses) stands in no `repr` and is hidden wherever text is shown.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from toolway.gateway.replica import parsing
from toolway.secrets.known import remember

KEY_BYTES: Final = 32
LARGEST_FILE: Final = 4096  # bytes of a file with one secret


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    nats: tuple[str, ...] = field(repr=False)  # addresses of one NATS cluster; they may hold passwords
    database: str = field(repr=False)  # the record: postgresql://…, or sqlite:///file to try it on one machine
    key: bytes = field(repr=False)  # seals what nodes, clients and the record keep for each other; all have the same
    nats_credentials: str = ""  # a file of NATS (.creds) with the user's JWT and seed; "" = what the addresses say
    cluster: str = "toolway"  # clusters on one NATS are told apart by it
    tenant: str = "default"  # whose servers are served
    node: str = "node"  # the name of this node; its id is that and something random (`new_id`)
    advertise: str | None = None  # where others reach us by HTTP; "" = over NATS alone; None = as it is found out
    capacity: int = 1000  # the most servers that this node owns; those with more are given more
    labels: tuple[str, ...] = ()  # what servers may ask of the node they run on

    def new_id(self) -> str:
        """The id of a node that begins to live now. Made in the process that joins, never before a fork: two
        processes of one id would be taken for one."""
        return f"{self.node}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says; what it leaves out is None."""

    cluster: str | None = None  # addresses of NATS, with commas between
    database: str | None = None
    cluster_name: str | None = None
    tenant: str | None = None
    node: str | None = None
    advertise: str | None = None
    capacity: str | int | None = None
    labels: str | None = None
    cluster_key_file: str | None = None
    nats_credentials: str | None = None


# What says the same as a flag. The first of them makes a gateway one of a cluster, as --cluster does.
VARIABLES: Final = {
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
}
KEY_VARIABLE: Final = "TOOLWAY_CLUSTER_KEY"
DATABASE_FILE_VARIABLE: Final = "TOOLWAY_DATABASE_FILE"


def read(flags: Flags, environ: Mapping[str, str]) -> ClusterOptions | None:
    """None where nobody asks for a cluster. Raises `ConfigError`."""
    given = {name: _one(getattr(flags, name), environ.get(variable)) for name, variable in VARIABLES.items()}
    if given["cluster"] is None:
        _nothing_in_vain(flags)
        return None
    options = ClusterOptions(
        nats=parsing.nats(given["cluster"]),
        database=_database(given["database"], environ),
        key=_key(given["cluster_key_file"], environ),
        nats_credentials=_readable(given["nats_credentials"]),
        cluster=parsing.name("--cluster-name", given["cluster_name"] or "toolway"),
        tenant=parsing.name("--tenant", given["tenant"] or "default"),
        node=parsing.name("--node", given["node"] or _own_name()),
        advertise=parsing.advertise(given["advertise"]),
        capacity=parsing.capacity(given["capacity"]),
        labels=parsing.labels(given["labels"] or ""),
    )
    for address in (*options.nats, options.database):
        for secret in parsing.secrets_of(address):
            remember(secret)
    return options


def _one(flag: object, variable: str | None) -> str | None:
    """The flag counts more; what is empty was not said."""
    return str(flag) if flag is not None else variable or None


def _nothing_in_vain(flags: Flags) -> None:
    for name in Flags.__dataclass_fields__:
        if getattr(flags, name) is not None:
            raise parsing.wrong(
                f"--{name.replace('_', '-')} is for a gateway of a cluster",
                "there is no --cluster",
                "name the cluster's NATS too: --cluster nats://HOST:4222",
            )


def _own_name() -> str:
    """That of the machine or container, as far as it can be used."""
    found = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")
    return found[: parsing.LONGEST_NAME].rstrip("-") or "node"


def _database(text: str | None, environ: Mapping[str, str]) -> str:
    file = environ.get(DATABASE_FILE_VARIABLE)
    if text is None and file:
        text = _secret_in(file, f"${DATABASE_FILE_VARIABLE}")
    if text is None:
        raise parsing.wrong(
            "a cluster needs a database, which remembers what all replicas must know",
            "neither --database nor $TOOLWAY_DATABASE is given",
            "name it: --database postgresql://USER@HOST/NAME",
        )
    return parsing.database(text)


# -- what is secret ---------------------------------------------------------------------------------------------------


def new_key() -> str:
    """A key for a cluster, as it is written down."""
    return secrets.token_hex(KEY_BYTES)


def key_in(environ: Mapping[str, str]) -> bytes | None:
    """The key of the cluster that the environment names, if it names one. Raises `ConfigError`."""
    file = environ.get(VARIABLES["cluster_key_file"])
    return _key(file, environ) if file or environ.get(KEY_VARIABLE) else None


def _key(file: str | None, environ: Mapping[str, str]) -> bytes:
    where = file or f"${KEY_VARIABLE}"
    text = _secret_in(file, "--cluster-key-file") if file else environ.get(KEY_VARIABLE, "").strip()
    if not text:
        raise parsing.wrong(
            "a cluster needs a key that all its gateways share",
            f"{where} holds nothing" if file else f"neither --cluster-key-file nor {where} is given",
            "make one, and give it to every gateway: toolway cluster-key --out cluster.key",
            "E-CLUSTER-KEY",
        )
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise parsing.wrong(
            f"the key of the cluster cannot be used: {where}",
            f"it is not {2 * KEY_BYTES} hexadecimal digits",
            "make one, and give it to every gateway: toolway cluster-key --out cluster.key",
            "E-CLUSTER-KEY",
        )
    remember(text)
    return key


def _readable(file: str | None) -> str:
    if file is not None:
        _secret_in(file, "--nats-credentials")
        from toolway.cluster.creds import options_of

        try:
            options_of(file)
        except ValueError as exc:
            fix = "make one for the account of this tenant: nsc generate creds --account TENANT --name USER"
            raise parsing.wrong(f"{file} cannot be used as --nats-credentials", str(exc), fix) from None
    return file or ""


def _secret_in(file: str, what: str) -> str:
    try:
        with open(file, "rb") as opened:
            return opened.read(LARGEST_FILE).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror or str(exc) if isinstance(exc, OSError) else "it is not plain text"
        raise parsing.wrong(
            f"the file of {what} cannot be read: {file}", why, "name one that this user may read"
        ) from None

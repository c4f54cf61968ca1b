"""SQLAlchemy tables of the cluster database. Times are seconds by the database clock.

A node has one lease (`nodes.lease_until`) and owns server instances under its `epoch`. An owner may act as long as its
node's lease is valid. So a renewal writes one row per node, independent of the number of owned servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    false,
    text,
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from toolway.part_api import database, registry
from toolway.part_api.part import Part

Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts only in INTEGER PRIMARY KEY


def _partial_index(condition: str, name: str, *columns: str) -> Index:
    """Create a partial index: it covers only rows that match `condition`, and so stays small."""
    return Index(name, *columns, postgresql_where=text(condition), sqlite_where=text(condition))


class Base(DeclarativeBase):
    """SQLAlchemy declarative base of all cluster tables; maps Python types to column types."""

    type_annotation_map: ClassVar = {
        str: Text,
        float: Double,
        bool: Boolean,
        bytes: LargeBinary,
        dict[str, Any]: JSON,
    }


class NodeRow(Base):
    """One gateway process of the cluster, with its lease."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(server_default="default")  # the tenant whose servers it owns
    epoch: Mapped[int] = mapped_column(Number)  # new with every lease
    address: Mapped[str]  # HTTP address for other nodes; empty = reachable only over NATS
    version: Mapped[str]
    capacity: Mapped[int]  # maximum number of server processes
    load: Mapped[int] = mapped_column(server_default="0")  # running server processes at the last lease renewal
    labels: Mapped[dict[str, Any]]
    parts: Mapped[dict[str, Any]]  # features that its configuration uses
    draining: Mapped[bool]
    joined: Mapped[float]
    lease_until: Mapped[float]
    mac: Mapped[str] = mapped_column(server_default="")  # of what the node stored when it joined (`integrity.py`)

    __table_args__ = (Index("nodes_by_lease", "tenant", "lease_until"),)


class PartTablesRow(Base):
    """Version of a part's tables (`Part.table_version`)."""

    __tablename__ = "part_tables"

    part: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Number)


class EpochRow(Base):
    """Counter for lease epochs. Each number is issued once in the whole cluster."""

    __tablename__ = "epochs"

    one: Mapped[int] = mapped_column(primary_key=True)
    last: Mapped[int] = mapped_column(Number)


class ServerRow(Base):
    """One configured server of a tenant, with its encrypted entry."""

    __tablename__ = "servers"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    definition: Mapped[dict[str, Any]]  # {"sealed": …}: encrypted, because an entry may contain a plain-text secret
    revision: Mapped[int] = mapped_column(Number, index=True)  # of the last change


class PoolRow(Base):
    """Pool of nodes that some server requires: a set of node labels, sorted and comma-separated.

    Servers that require no labels have no row.
    """

    __tablename__ = "pools"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)


class InstanceRow(Base):
    """One instance of a server and its owner node, if any.

    `fence` grows with every change of the owner. The row exists as long as a node may act on the instance. A row that
    the configuration no longer wants is deleted when its owner has stopped the instance.
    """

    __tablename__ = "instances"
    __table_args__ = (
        _partial_index("node IS NULL", "instances_free", "tenant", "pool", "slot"),
        _partial_index("node IS NULL", "instances_waiting", "tenant", "free_since"),
        _partial_index("recalled", "instances_recalled", "node"),
        Index("instances_by_node", "node"),
    )

    tenant: Mapped[str] = mapped_column(primary_key=True)
    server: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(server_default="")  # the labels that its node must have
    slot: Mapped[int]
    cost: Mapped[int] = mapped_column(server_default="1")  # 1 = runs a process on its node; 0 = remote server
    wanted: Mapped[bool] = mapped_column(server_default=true())  # false: deleted when its owner releases it
    recalled: Mapped[bool] = mapped_column(server_default=false())  # its owner must release it
    node: Mapped[str | None]
    epoch: Mapped[int | None] = mapped_column(Number)  # of the node when it claimed the instance
    fence: Mapped[int] = mapped_column(Number)
    free_since: Mapped[float]  # start of the time without owner; meaningful only while `node` is NULL


class RevisionRow(Base):
    """Counter for revisions, the numbers of changes in the database.

    A writer locks the row until its transaction ends. So changes become visible in the order of their revisions: a
    node that has seen one revision has seen all earlier ones.
    """

    __tablename__ = "revisions"

    one: Mapped[int] = mapped_column(primary_key=True)
    last: Mapped[int] = mapped_column(Number)


class ChangeRow(Base):
    """Revision of the last change of one kind for one tenant.

    Nodes poll it to know whether they must reload."""

    __tablename__ = "changes"

    kind: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(Number, index=True)


class TenantRow(Base):
    """Settings of a tenant, without its servers.

    Every writer of the tenant's configuration locks this row.
    """

    __tablename__ = "tenants"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    settings: Mapped[str]  # encrypted; empty = none
    revision: Mapped[int] = mapped_column(Number)


class TenantStateRow(Base):
    """Encrypted sums of the keyed hashes of a tenant's rows, to detect changed rows (`integrity.py`).

    Every change of the tenant locks this row at the end.
    """

    __tablename__ = "tenant_states"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[str]  # empty: nothing was written yet


class ImportedConfigRow(Base):
    """Digest of an imported configuration file: an old file must not overwrite newer changes."""

    __tablename__ = "imported_configs"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(Number)


class RemovedServerRow(Base):
    """Tombstone of a removed server, for nodes that catch up from a revision."""

    __tablename__ = "removed_servers"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(Number, index=True)
    removed_at: Mapped[float]


class ApiKeyRow(Base):
    """Gateway API key: its attributes with a hash, never the key itself.

    A revoked key stays for a day, so slow nodes find it as revoked.
    """

    __tablename__ = "api_keys"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    facts: Mapped[dict[str, Any]]  # attributes of the key, defined by the gateway
    revision: Mapped[int] = mapped_column(Number, index=True)
    revoked_at: Mapped[float | None]
    mac: Mapped[str] = mapped_column(server_default="")  # of all columns (`integrity.py`)


class IdempotencyRow(Base):
    """A call's idempotency key: the node that runs the call, its state and its outcome."""

    __tablename__ = "claims"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)  # digest of caller, server, tool and key
    fingerprint: Mapped[str]
    state: Mapped[str]  # running, finished, unknown, interrupted
    call: Mapped[str]  # the call that claimed it
    attempt: Mapped[str] = mapped_column(server_default="")  # unique id of the attempt that claimed it
    node: Mapped[str]  # the node that runs the call, as far as is known
    epoch: Mapped[int] = mapped_column(Number)
    outcome: Mapped[bytes | None]
    until: Mapped[float] = mapped_column(index=True)  # may be deleted after this time


class CredentialRow(Base):
    """OAuth tokens of one principal for one upstream server."""

    __tablename__ = "credentials"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)  # digest of upstream and principal
    sealed: Mapped[str]  # encrypted credentials by issuer; empty if the row is only used as a lock
    revision: Mapped[int] = mapped_column(Number, index=True)
    renewer: Mapped[str]  # id of the reservation that may refresh the token now
    renewer_until: Mapped[float]


class ServerListsRow(Base):
    """Tools, prompts and resources of a server, as last listed by its owner node."""

    __tablename__ = "lists"
    __table_args__ = (
        ForeignKeyConstraint(["tenant", "server"], ["servers.tenant", "servers.name"], ondelete="CASCADE"),
    )

    tenant: Mapped[str] = mapped_column(primary_key=True)
    server: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(Number)  # ownership fence of the writer
    identity: Mapped[str]  # identifies the server; lists with another identity are not used
    body: Mapped[bytes]
    revision: Mapped[int] = mapped_column(Number, index=True)
    mac: Mapped[str] = mapped_column(server_default="")  # of identity and body (`integrity.py`)


class RateBucketRow(Base):
    """Remaining rate-limit tokens of one API key. A bucket without a row is full."""

    __tablename__ = "buckets"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    tokens: Mapped[float]  # negative: a debt that is paid back over time
    at: Mapped[float]


class SessionRow(Base):
    """State that a legacy client (before 2026-07-28) set in its session, for all nodes.

    A session in which the client has set nothing has no row.
    """

    __tablename__ = "sessions"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)  # digest of the session id
    facts: Mapped[dict[str, Any]]
    until: Mapped[float] = mapped_column(index=True)  # the session cannot be resumed after this time


class PinsRow(Base):
    """One server's pinned definitions, and deviations from them."""

    __tablename__ = "pins"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    server: Mapped[str] = mapped_column(primary_key=True)
    identity: Mapped[str] = mapped_column(primary_key=True)  # hash of its command or URL: another server has other pins
    body: Mapped[bytes]
    mac: Mapped[str]  # of all columns but the revision (`integrity.py`)
    revision: Mapped[int] = mapped_column(Number, index=True)  # of the last change


class RunDefinitionRow(Base):
    """A workflow's definition at the time its runs started. The row never changes."""

    __tablename__ = "run_definitions"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    body: Mapped[bytes]


class RunRow(Base):
    """One run of a workflow. While a node executes it, the row names the node and its lease.

    The indexes cover only runs that are due or running, so a million runs that wait or have ended are free.
    """

    __tablename__ = "runs"
    __table_args__ = (
        _partial_index("due IS NOT NULL AND node IS NULL", "runs_due", "tenant", "due"),
        _partial_index("node IS NOT NULL", "runs_by_node", "tenant", "node", "epoch"),
        Index("runs_by_time", "tenant", "created"),
        Index("runs_by_state", "tenant", "state", "created"),
        Index(
            "runs_by_key",
            "tenant",
            "workflow",
            "caller",
            "key",
            unique=True,
            postgresql_where=text("key IS NOT NULL"),
            sqlite_where=text("key IS NOT NULL"),
        ),
    )

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    workflow: Mapped[str]
    definition: Mapped[str]  # hash
    key: Mapped[str | None]
    caller: Mapped[str]
    state: Mapped[str]
    due: Mapped[float | None]  # by the wall clock of the nodes; 0 = a message has arrived
    node: Mapped[str | None]  # the node that executes it
    epoch: Mapped[int | None] = mapped_column(Number)  # the lease of that node
    start: Mapped[bytes]  # encrypted: inputs, variables, hash of the definition, caller
    result: Mapped[bytes]  # encrypted: open questions, output, error
    created: Mapped[float]
    ended: Mapped[float | None]


class RunEntryRow(Base):
    """Journal entry of a workflow run: one attempt of one step."""

    __tablename__ = "run_entries"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[bytes]  # encrypted


class RunMessageRow(Base):
    """A message to a workflow run: an answer, the resolution of an unknown outcome, a cancellation."""

    __tablename__ = "run_messages"
    __table_args__ = (Index("run_messages_by_run", "tenant", "run", "id"),)

    id: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    tenant: Mapped[str]
    run: Mapped[str]
    body: Mapped[bytes]  # encrypted


# -- tables of parts ---------------------------------------------------------------------------------------------------

_PART_TYPES: Final[dict[str, Any]] = {"TEXT": Text(), "BIGINT": Number, "DOUBLE": Double(), "BLOB": LargeBinary()}


def add_part_tables(parts: Iterable[Part]) -> list[Table]:
    """Return the parts' tables in the cluster database. Each row belongs to a tenant."""
    return [_add_table(table) for part in parts for table in part.tables()]


def _add_table(table: database.Table) -> Table:
    known = Base.metadata.tables.get(table.name)
    if known is not None:
        return known
    keys = [Column(name, Text(), primary_key=True) for name in ("tenant", "key")]
    columns: list[Column[Any]] = [
        Column(name, _PART_TYPES[type_], nullable=False) for name, type_ in table.columns.items()
    ]
    if table.is_signed:
        columns.append(Column("mac", Text(), nullable=False))  # of all columns (`integrity.py`)
    return Table(table.name, Base.metadata, *keys, *columns)


add_part_tables(registry.built_in())

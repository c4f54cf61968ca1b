"""The tables. Times are seconds by the clock of the database.

A node has one lease (`nodes.lease_until`), and owns instances of servers under its `epoch`. Whether an owner may still
act is one question about its node; so renewing is one row a node, however many servers it owns.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Text,
    false,
    text,
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts only in INTEGER PRIMARY KEY


def _partly(where: str, name: str, *columns: str) -> Index:
    """An index of some rows alone, and so a small one."""
    return Index(name, *columns, postgresql_where=text(where), sqlite_where=text(where))


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {
        str: Text,
        float: Double,
        bool: Boolean,
        bytes: LargeBinary,
        dict[str, Any]: JSON,
    }


class NodeRow(Base):
    """A process of the cluster."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(server_default="default")  # whose servers it owns
    epoch: Mapped[int] = mapped_column(Number)  # new with every tenure
    address: Mapped[str]  # where others reach it by HTTP; empty = only over the bus
    version: Mapped[str]
    capacity: Mapped[int]  # programs that it runs at the most
    load: Mapped[int] = mapped_column(server_default="0")  # programs that it runs, when it renewed its lease last
    labels: Mapped[dict[str, Any]]
    draining: Mapped[bool]
    joined: Mapped[float]
    lease_until: Mapped[float]

    __table_args__ = (Index("nodes_by_lease", "tenant", "lease_until"),)


class EpochRow(Base):
    """Where the numbers of tenures come from: each is given once, to whichever node."""

    __tablename__ = "epochs"

    one: Mapped[int] = mapped_column(primary_key=True)
    last: Mapped[int] = mapped_column(Number)


class ServerRow(Base):
    """What is configured, by tenant."""

    __tablename__ = "servers"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    definition: Mapped[dict[str, Any]]  # {"sealed": …}: an entry may hold a secret in plain letters
    revision: Mapped[int] = mapped_column(Number, index=True)  # of the change that made it so


class PoolRow(Base):
    """Labels that some server asks of its node, in order and with commas between. Without labels there is no row."""

    __tablename__ = "pools"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)


class PlaceRow(Base):
    """One instance of a server that must have one owner. `fence` grows whenever it changes hands.

    It is there for as long as somebody may act on it: one that is no longer wanted goes when its owner has ended."""

    __tablename__ = "places"
    __table_args__ = (
        _partly("node IS NULL", "places_free", "tenant", "pool", "slot"),
        _partly("node IS NULL", "places_waiting", "tenant", "free_since"),
        _partly("recalled", "places_recalled", "node"),
        Index("places_by_node", "node"),
    )

    tenant: Mapped[str] = mapped_column(primary_key=True)
    server: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(server_default="")  # the labels that its node must have
    slot: Mapped[int]
    cost: Mapped[int] = mapped_column(server_default="1")  # 1: a program runs for it; 0: it is only looked after
    wanted: Mapped[bool] = mapped_column(server_default=true())  # false: it goes with its owner
    recalled: Mapped[bool] = mapped_column(server_default=false())  # its owner shall hand it back
    node: Mapped[str | None]
    epoch: Mapped[int | None] = mapped_column(Number)  # of the node when it took it
    fence: Mapped[int] = mapped_column(Number)
    free_since: Mapped[float]  # since when it has no owner, if it has none


class RevisionRow(Base):
    """Where the numbers of changes come from. Whoever takes one holds the row to the end of its transaction, so changes
    become visible in the order of their numbers: who has seen one has seen all before it."""

    __tablename__ = "revisions"

    one: Mapped[int] = mapped_column(primary_key=True)
    last: Mapped[int] = mapped_column(Number)


class ChangeRow(Base):
    """When something of a kind last changed for a tenant: what a node asks about to know whether to read anew."""

    __tablename__ = "changes"

    kind: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(Number, index=True)


class TenantRow(Base):
    """What a tenant's configuration says beside its servers. Its row is locked by whoever changes them."""

    __tablename__ = "tenants"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    settings: Mapped[str]  # sealed; empty where there are none
    revision: Mapped[int] = mapped_column(Number)


class TakenRow(Base):
    """A file of configuration that was taken once: an old one that comes again is not taken for a new one."""

    __tablename__ = "taken"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(Number)


class RemovedRow(Base):
    """A server that is no more, for those who read what changed."""

    __tablename__ = "removed"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(Number, index=True)
    removed_at: Mapped[float]


class ApiKeyRow(Base):
    """A key of the gateway, never itself. A revoked one stays for a day, for those who hear of it late."""

    __tablename__ = "api_keys"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    facts: Mapped[dict[str, Any]]  # what the gateway keeps of it
    revision: Mapped[int] = mapped_column(Number, index=True)
    revoked_at: Mapped[float | None]


class ClaimRow(Base):
    """An idempotency key that was used."""

    __tablename__ = "claims"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)  # the digest of whose key it is, for what, and the key
    fingerprint: Mapped[str]
    state: Mapped[str]  # running, finished, unknown
    call: Mapped[str]  # the call that claimed it
    attempt: Mapped[str] = mapped_column(server_default="")  # by which try; each has a name of its own
    node: Mapped[str]  # who makes that call, as far as is known
    epoch: Mapped[int] = mapped_column(Number)
    outcome: Mapped[bytes | None]
    until: Mapped[float] = mapped_column(index=True)  # when it may be forgotten


class CredentialRow(Base):
    """The login of a principal at an upstream server."""

    __tablename__ = "credentials"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)  # the digest of upstream and principal
    sealed: Mapped[str]  # all that is kept, by issuer; empty while only the lock is wanted
    revision: Mapped[int] = mapped_column(Number, index=True)
    renewer: Mapped[str]  # who alone may renew it now
    renewer_until: Mapped[float]


class ListRow(Base):
    """What a server has, as its owner heard it last."""

    __tablename__ = "lists"
    __table_args__ = (
        ForeignKeyConstraint(["tenant", "server"], ["servers.tenant", "servers.name"], ondelete="CASCADE"),
    )

    tenant: Mapped[str] = mapped_column(primary_key=True)
    server: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(Number)  # under which its writer owned the server
    identity: Mapped[str]  # what makes it the same server
    body: Mapped[bytes]
    revision: Mapped[int] = mapped_column(Number, index=True)


class BucketRow(Base):
    """What is left of the calls of a key that has a rate. None: all of it."""

    __tablename__ = "buckets"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    tokens: Mapped[float]  # less than nothing: it is paid back by waiting
    at: Mapped[float]


class SessionRow(Base):
    """What a client of the handshake era settled in its session, for gateways that see it later. None: nothing."""

    __tablename__ = "sessions"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)  # the digest of the session's own
    facts: Mapped[dict[str, Any]]
    until: Mapped[float] = mapped_column(index=True)  # when the session cannot be taken up again anyway

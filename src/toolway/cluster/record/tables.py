"""The tables. Times are seconds by the clock of the database.

A node has one lease (`nodes.lease_until`), and owns instances of servers under its `epoch`. Whether an owner may still
act is one question about its node; so renewing is one row a node, however many servers it owns.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Boolean, Double, ForeignKeyConstraint, Index, Integer, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts only in INTEGER PRIMARY KEY


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {str: Text, float: Double, bool: Boolean, dict[str, Any]: JSON}


class NodeRow(Base):
    """A process of the cluster."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(Number)  # new with every tenure
    address: Mapped[str]  # where others reach it by HTTP; empty = only over the bus
    version: Mapped[str]
    capacity: Mapped[int]
    labels: Mapped[dict[str, Any]]
    draining: Mapped[bool]
    joined: Mapped[float]
    lease_until: Mapped[float] = mapped_column(index=True)


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
    definition: Mapped[dict[str, Any]]
    revision: Mapped[int] = mapped_column(Number, index=True)  # of the change that made it so


class PlaceRow(Base):
    """One instance of a server that must have one owner. `fence` grows whenever it changes hands."""

    __tablename__ = "places"
    __table_args__ = (
        ForeignKeyConstraint(["tenant", "server"], ["servers.tenant", "servers.name"], ondelete="CASCADE"),
        Index("places_by_slot", "slot"),
        Index("places_by_node", "node"),
    )

    tenant: Mapped[str] = mapped_column(primary_key=True)
    server: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[int] = mapped_column(primary_key=True)
    slot: Mapped[int]
    node: Mapped[str | None]
    epoch: Mapped[int | None] = mapped_column(Number)  # of the node when it took it
    fence: Mapped[int] = mapped_column(Number)
    free_since: Mapped[float]  # since when it has no owner, if it has none

"""Nodes, servers and who owns them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("epoch", _number, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("joined", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
    )
    op.create_index("ix_nodes_lease_until", "nodes", ["lease_until"])
    epochs = op.create_table(
        "epochs",
        sa.Column("one", sa.Integer(), primary_key=True),
        sa.Column("last", _number, nullable=False),
    )
    op.bulk_insert(epochs, [{"one": 1, "last": 0}])
    op.create_table(
        "servers",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("revision", _number, nullable=False),
    )
    op.create_index("ix_servers_revision", "servers", ["revision"])
    op.create_table(
        "places",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("server", sa.Text(), primary_key=True),
        sa.Column("instance", sa.Integer(), primary_key=True),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text()),
        sa.Column("epoch", _number),
        sa.Column("fence", _number, nullable=False),
        sa.Column("free_since", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["tenant", "server"], ["servers.tenant", "servers.name"], ondelete="CASCADE"),
    )
    op.create_index("places_by_slot", "places", ["slot"])
    op.create_index("places_by_node", "places", ["node"])

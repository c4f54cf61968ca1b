"""Create all tables of the cluster database.

The revision is "0006": earlier development versions created the same schema in six steps, and a database that they
left at "0006" is at the head of this history. Later revisions count on from there (`engine.py` compares the numbers).
Columns that were added in a later step are at the end of their tables, as in those databases.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = None

_BIG_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_counters()
    _create_nodes()
    _create_configuration()
    _create_instances()
    _create_server_state()
    _create_client_state()


def _create_counters() -> None:
    """Create the tables of lease epochs, revisions, and last revision per kind of change."""
    for table in ("epochs", "revisions"):
        counter = op.create_table(
            table,
            sa.Column("one", sa.Integer(), primary_key=True),
            sa.Column("last", _BIG_NUMBER, nullable=False),
        )
        op.bulk_insert(counter, [{"one": 1, "last": 0}])
    op.create_table(
        "changes",
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
    )
    op.create_index("ix_changes_revision", "changes", ["revision"])


def _create_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("epoch", _BIG_NUMBER, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("joined", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("load", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("tenant", sa.Text(), nullable=False, server_default="default"),
    )
    op.create_index("nodes_by_lease", "nodes", ["tenant", "lease_until"])


def _create_configuration() -> None:
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
    )
    op.create_table(
        "servers",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
    )
    op.create_index("ix_servers_revision", "servers", ["revision"])
    op.create_table(
        "removed_servers",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=False),
    )
    op.create_index("ix_removed_servers_revision", "removed_servers", ["revision"])
    op.create_table(
        "imported_configs",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
    )


def _create_instances() -> None:
    """Create the tables of server instances and of the label sets that they require.

    There is no foreign key to the servers: an instance outlives its server until its owner has stopped.
    """
    op.create_table(
        "pools",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("pool", sa.Text(), primary_key=True),
    )
    op.create_table(
        "instances",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("server", sa.Text(), primary_key=True),
        sa.Column("instance", sa.Integer(), primary_key=True),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text()),
        sa.Column("epoch", _BIG_NUMBER),
        sa.Column("fence", _BIG_NUMBER, nullable=False),
        sa.Column("free_since", sa.Double(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False, server_default=""),
        sa.Column("cost", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("wanted", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("recalled", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index("instances_by_node", "instances", ["node"])
    _create_partial_index("instances_free", ["tenant", "pool", "slot"], "node IS NULL")
    _create_partial_index("instances_waiting", ["tenant", "free_since"], "node IS NULL")
    _create_partial_index("instances_recalled", ["node"], "recalled")


def _create_partial_index(name: str, columns: list[str], condition: str) -> None:
    op.create_index(name, "instances", columns, postgresql_where=sa.text(condition), sqlite_where=sa.text(condition))


def _create_server_state() -> None:
    """Create the tables of OAuth tokens for servers, and of the tools, prompts and resources that servers list."""
    op.create_table(
        "credentials",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
        sa.Column("renewer", sa.Text(), nullable=False),
        sa.Column("renewer_until", sa.Double(), nullable=False),
    )
    op.create_index("ix_credentials_revision", "credentials", ["revision"])
    op.create_table(
        "lists",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("server", sa.Text(), primary_key=True),
        sa.Column("fence", _BIG_NUMBER, nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["tenant", "server"], ["servers.tenant", "servers.name"], ondelete="CASCADE"),
    )
    op.create_index("ix_lists_revision", "lists", ["revision"])


def _create_client_state() -> None:
    """Create the tables of API keys, their rate-limit buckets, idempotency keys and legacy sessions."""
    op.create_table(
        "api_keys",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("revision", _BIG_NUMBER, nullable=False),
        sa.Column("revoked_at", sa.Double()),
    )
    op.create_index("ix_api_keys_revision", "api_keys", ["revision"])
    op.create_table(
        "buckets",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("epoch", _BIG_NUMBER, nullable=False),
        sa.Column("outcome", sa.LargeBinary()),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("attempt", sa.Text(), nullable=False, server_default=""),
    )
    op.create_index("ix_claims_until", "claims", ["until"])
    op.create_table(
        "sessions",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )
    op.create_index("ix_sessions_until", "sessions", ["until"])

"""What all nodes share: configuration, API keys, idempotency keys, logins, lists, and what changed when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _changes()
    _configuration()
    _keys()
    _servers()


def _changes() -> None:
    revisions = op.create_table(
        "revisions",
        sa.Column("one", sa.Integer(), primary_key=True),
        sa.Column("last", _number, nullable=False),
    )
    op.bulk_insert(revisions, [{"one": 1, "last": 0}])
    op.create_table(
        "changes",
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("revision", _number, nullable=False),
    )
    op.create_index("ix_changes_revision", "changes", ["revision"])


def _configuration() -> None:
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("revision", _number, nullable=False),
    )
    op.create_table(
        "taken",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("revision", _number, nullable=False),
    )
    op.create_table(
        "removed",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("revision", _number, nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=False),
    )
    op.create_index("ix_removed_revision", "removed", ["revision"])


def _keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("revision", _number, nullable=False),
        sa.Column("revoked_at", sa.Double()),
    )
    op.create_index("ix_api_keys_revision", "api_keys", ["revision"])
    op.create_table(
        "claims",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("epoch", _number, nullable=False),
        sa.Column("outcome", sa.LargeBinary()),
        sa.Column("until", sa.Double(), nullable=False),
    )
    op.create_index("ix_claims_until", "claims", ["until"])


def _servers() -> None:
    op.create_table(
        "credentials",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("revision", _number, nullable=False),
        sa.Column("renewer", sa.Text(), nullable=False),
        sa.Column("renewer_until", sa.Double(), nullable=False),
    )
    op.create_index("ix_credentials_revision", "credentials", ["revision"])
    op.create_table(
        "lists",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("server", sa.Text(), primary_key=True),
        sa.Column("fence", _number, nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("revision", _number, nullable=False),
        sa.ForeignKeyConstraint(["tenant", "server"], ["servers.tenant", "servers.name"], ondelete="CASCADE"),
    )
    op.create_index("ix_lists_revision", "lists", ["revision"])

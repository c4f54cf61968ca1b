"""Add the tables of workflow runs: definitions, runs, journal entries, messages. Earlier versions do not use them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "run_definitions",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("hash", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("due", sa.Double(), nullable=True),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("epoch", number, nullable=True),
        sa.Column("start", sa.LargeBinary(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
    )
    _create_index("runs_due", ["tenant", "due"], "due IS NOT NULL AND node IS NULL")
    _create_index("runs_by_node", ["tenant", "node", "epoch"], "node IS NOT NULL")
    _create_index("runs_by_key", ["tenant", "workflow", "caller", "key"], "key IS NOT NULL", unique=True)
    op.create_index("runs_by_time", "runs", ["tenant", "created"])
    op.create_index("runs_by_state", "runs", ["tenant", "state", "created"])
    op.create_table(
        "run_entries",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("run", sa.Text(), primary_key=True),
        sa.Column("path", sa.Text(), primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "run_messages",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("run_messages_by_run", "run_messages", ["tenant", "run", "id"])


def _create_index(name: str, columns: list[str], condition: str, *, unique: bool = False) -> None:
    where = sa.text(condition)
    op.create_index(name, "runs", columns, unique=unique, postgresql_where=where, sqlite_where=where)

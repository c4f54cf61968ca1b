"""Add the table of the vectors for tool search by meaning. Nodes of earlier versions do not use it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"


def upgrade() -> None:
    op.create_table(
        "tool_vectors",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.Column("saved_at", sa.Double(), nullable=False),
    )

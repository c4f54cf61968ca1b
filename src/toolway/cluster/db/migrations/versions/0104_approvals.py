"""Add the tables of calls that need the approval of an operator, and of used answers of clients.

Nodes of earlier versions do not use the tables, and send such calls without approval.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0104"
down_revision = "0103"


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
    )
    op.create_table(
        "spent_answers",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("until", sa.Double(), nullable=False),
    )
    op.create_index("ix_spent_answers_until", "spent_answers", ["until"])

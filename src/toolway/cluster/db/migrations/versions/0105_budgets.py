"""Add the table of how much of each call budget was used. Nodes of earlier versions do not count that."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = "0104"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "budget_use",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("period", _NUMBER, nullable=False),
        sa.Column("used", _NUMBER, nullable=False),
    )

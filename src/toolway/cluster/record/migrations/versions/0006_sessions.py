"""What clients of the handshake era settled in their sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )
    op.create_index("ix_sessions_until", "sessions", ["until"])

"""Add the table of the data-flow labels (private, untrusted, sink) that the recent calls of each caller had.

Nodes of earlier versions do not check these labels.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0106"
down_revision = "0105"


def upgrade() -> None:
    op.create_table(
        "flow_windows",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("entries", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
    )

"""Add signatures of rows and the sealed state of each tenant.

The revision starts a new hundred, because it is not compatible: earlier versions write rows without signatures, which
are not used any more. The rows of an earlier version are taken over by an operator (`takeover.py`), never by a
migration: otherwise who can write to the database could lower its version and have new rows signed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = "0006"


def upgrade() -> None:
    for table in ("nodes", "api_keys", "lists"):
        op.add_column(table, sa.Column("mac", sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "tenant_states",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("sealed", sa.Text(), nullable=False),
    )

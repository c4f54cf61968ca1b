"""Which try to claim an idempotency key succeeded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("claims", sa.Column("attempt", sa.Text(), nullable=False, server_default=""))

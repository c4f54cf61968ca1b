"""Add the table of the pinned definitions (of tools, prompts …) of each server. Earlier versions do not use it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "pins",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("server", sa.Text(), primary_key=True),
        sa.Column("identity", sa.Text(), primary_key=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.Column("revision", _NUMBER, nullable=False),
    )
    op.create_index("ix_pins_revision", "pins", ["revision"])

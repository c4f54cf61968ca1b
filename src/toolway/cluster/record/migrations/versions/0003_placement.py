"""Labels, room on nodes, and places that outlive their server until their owner has ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_NAMES = {"fk": "fk_%(table_name)s_%(referred_table_name)s"}  # SQLite did not name it


def upgrade() -> None:
    op.add_column("nodes", sa.Column("load", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("nodes", sa.Column("tenant", sa.Text(), nullable=False, server_default="default"))
    op.drop_index("ix_nodes_lease_until", "nodes")
    op.create_index("nodes_by_lease", "nodes", ["tenant", "lease_until"])
    op.create_table(
        "pools",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("pool", sa.Text(), primary_key=True),
    )
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("places", naming_convention=_NAMES) as places:
            places.drop_constraint("fk_places_servers", type_="foreignkey")
    else:
        op.drop_constraint("places_tenant_server_fkey", "places", type_="foreignkey")
    op.add_column("places", sa.Column("pool", sa.Text(), nullable=False, server_default=""))
    op.add_column("places", sa.Column("cost", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("places", sa.Column("wanted", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("places", sa.Column("recalled", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.drop_index("places_by_slot", "places")
    _partly("places_free", ["tenant", "pool", "slot"], "node IS NULL")
    _partly("places_waiting", ["tenant", "free_since"], "node IS NULL")
    _partly("places_recalled", ["node"], "recalled")


def _partly(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "places", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))

"""Create all tables of the cluster database, as `tables.py` describes them.

The first migration after a release must copy the tables into this file, because `tables.py` then describes later ones.
The number matches databases that development versions created in several steps; later revisions count on from it.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import insert

from toolway.cluster.db.tables import Base, EpochRow, RevisionRow

revision = "0106"
down_revision = None


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind(), checkfirst=False)
    for counter in (EpochRow, RevisionRow):
        op.execute(insert(counter).values(one=1, last=0))

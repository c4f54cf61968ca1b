"""Alembic environment: run the migrations on the connection of the caller."""

from __future__ import annotations

from alembic import context

from toolway.cluster.db.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()

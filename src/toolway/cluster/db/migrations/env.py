"""Alembic environment: runs the migrations on the caller's connection."""

from __future__ import annotations

from alembic import context

from toolway.cluster.db.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()

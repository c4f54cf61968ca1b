"""Run by Alembic, on the connection that it was given."""

from __future__ import annotations

from alembic import context

from toolway.cluster.record.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()

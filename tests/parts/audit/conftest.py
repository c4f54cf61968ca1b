"""A real PostgreSQL server, and a machine with the command line."""

from tests.audit.conftest import postgres  # noqa: F401 - fixture
from tests.cli.conftest import machine  # noqa: F401 - fixture

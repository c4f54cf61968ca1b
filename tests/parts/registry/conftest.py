"""A machine whose configuration names one registry on loopback."""

import json

import pytest

from tests.cli.conftest import machine  # noqa: F401 - fixture
from toolway.testing import FakeRegistry


@pytest.fixture
def registry():
    with FakeRegistry() as found:
        yield found


@pytest.fixture
def private():
    with FakeRegistry() as found:
        yield found


class Shop:
    """Commands on the machine, and what its files have."""

    def __init__(self, machine) -> None:  # noqa: F811 - a parameter
        self.machine = machine
        self.cache = machine.home / "cache/toolway/registry"

    def use(self, *registries, **servers) -> None:
        block = {"registries": list(registries)}
        self.machine.write(".config/toolway/mcp.json", {"mcpServers": servers, "toolway": block})

    def run(self, *words):
        return self.machine.toolway(*words)

    def json(self, *words, code=0):
        result = self.run(*words, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def refused(self, *words):
        """The error that a command must end with."""
        result = self.run(*words, "--json")
        assert result.exit_code != 0, result.output
        return json.loads(result.stdout)["error"]

    @property
    def entries(self):
        return self.machine.entries()


@pytest.fixture
def shop(machine, registry, monkeypatch):  # noqa: F811 - the fixture
    monkeypatch.setenv("PATH", str(machine.home / "no-programs"))  # no npm: nothing is locked
    found = Shop(machine)
    found.use(registry.url)
    return found

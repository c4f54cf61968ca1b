"""Start guards of parts: what a hub starts instead of a command line, and what it refuses to start."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import pytest

from toolway import Hub
from toolway.config.schema import Server
from toolway.errors import CallError, ConfigError
from toolway.part_api import Part, StartGuard, registry

pytestmark = pytest.mark.anyio


class Guard(StartGuard):
    def concerns(self, words: Sequence[str]) -> bool:
        return words[0] == "guarded"

    def find_command(
        self, server: Server, words: Sequence[str], environ: Mapping[str, str], *, is_required: bool
    ) -> list[str] | None:
        if words[1] == "refused":
            raise ConfigError("it may not start", detail="the guard says so", code="E-EXAMPLE")
        return [sys.executable, "-c", "import sys; sys.exit(7)"]


class Guarding(Part):
    name = "example"
    start_guard = f"{__name__}:Guard"


@pytest.fixture(autouse=True)
def guarding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded", {"example": Guarding()})


def test_built_in_parts_with_start_guard_are_named_as_guarding() -> None:
    assert [part.name for part in registry.built_in() if part.start_guard] == list(registry.GUARDING)


async def test_start_guard_replaces_or_refuses_command() -> None:
    servers = {name: Server(command="guarded", args=(name,)) for name in ("replaced", "refused")}
    async with Hub(servers, token_store=None, catalog_storage=None) as hub:
        with pytest.raises(CallError) as replaced:
            await hub.call_tool("replaced.x", {}, timeout=20)
        with pytest.raises(CallError) as refused:
            await hub.call_tool("refused.x", {}, timeout=20)
    assert replaced.value.code == "E-STDIO-EXIT"
    assert "it may not start: the guard says so" in str(refused.value) and refused.value.code == "E-EXAMPLE"

"""A part of another distribution: found by its entry point, with settings, a limit, a route, a command and a table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.edge_lab import edge, message_of
from toolway.config.settings import find_unknown_keys, parse_gateway
from toolway.gateway.part_set import PartSet, file_database
from toolway.part_api import registry

PART = """
from toolway.part_api.part import Command, Part, PartRuntime

class Lunch(Part):
    name = "lunch"
    setting_keys = ("lunch",)
    table_file = "lunch.sqlite"
    commands = {"lunch": Command("Show what there is.", "lunch_cli:lunch")}

    def parse_settings(self, block, variables):
        return str(block["lunch"])

    def open(self, context):
        return LunchRuntime(self, context)

    def routes(self):
        from toolway.gateway.admin.routes import Route
        return [Route("GET", "/admin/lunch", "What there is", "Done", lambda runtime, request: runtime.show())]

    def tables(self):
        from toolway.part_api.database import Table
        return [Table("lunch_eaten", {"times": "BIGINT"})]

class LunchRuntime(PartRuntime):
    def __init__(self, part, context):
        self.database, self.food = context.open_database(part), ""
        context.limits.add(self)

    def apply(self, settings):
        self.food = settings or "nothing"

    def concerns(self, principal):
        return True

    def bind(self, principal, target):
        return self

    def try_take(self):
        return False  # it is counted in the database: no call is a flight

    def give_back(self):
        raise AssertionError

    async def run(self, work, *, is_followup):
        from toolway.part_api.database import Table
        table, = Lunch().tables()
        def eat(db):
            times = db.lock_rows(table, ["all"], (0,))["all"][0]
            db.put_rows(table, {"all": (times + 1,)})
        await self.database.run(eat)
        return await work

    async def show(self):
        table, = Lunch().tables()
        rows = await self.database.run(lambda db: db.select(table, "times > :least", least=0))
        return {"food": self.food, "times": rows.get("all", (0,))[0]}

    async def close(self):
        await self.database.close()
"""
CLI = """
def lunch(context):
    print("soup")
    return 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site, info = tmp_path / "site", tmp_path / "site" / "lunch-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "lunch_part.py").write_text(PART)
    (site / "lunch_cli.py").write_text(CLI)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lunch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[toolway.parts]\nlunch = lunch_part:Lunch\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(registry, "_foreign", {})
    monkeypatch.setattr(registry, "_loaded", {})
    yield site
    for name in ("lunch_part", "lunch_cli"):
        sys.modules.pop(name, None)


@pytest.mark.anyio
async def test_third_party_part_has_settings_limit_table_and_route(folder: Path, tmp_path: Path) -> None:
    assert [part.name for part in registry.in_use()] == list(registry.BUILT_IN)  # it is installed, and not named
    settings = parse_gateway({"lunch": "soup"}, {})
    assert settings.parts == {"lunch": "soup"} and find_unknown_keys({"lunch": "soup"}) == []
    assert [part.name for part in registry.in_use()] == [*registry.BUILT_IN, "lunch"]
    async with edge(tmp_path) as found:
        parts = PartSet(
            found.hub, found.keyring, open_database=file_database(tmp_path / "state"), parts=registry.in_use()
        )
        parts.apply(settings.parts)
        found.gateway._dispatcher.limits = parts.limits
        found.gateway.router._admin._parts = parts
        before = found.hub.calls.flights.landed
        for _ in range(3):
            assert "result" in await found.call("a__echo", {"text": "x"})
        assert message_of(await found.ask("GET", "/admin/lunch")) == {"food": "soup", "times": 3}
        assert found.hub.calls.flights.landed == before
        await parts.close()


def test_third_party_command_runs(folder: Path) -> None:
    program = "import sys; sys.argv[1:] = ['lunch']; from toolway.cli import main; main()"
    environ = {"PYTHONPATH": str(folder), "HOME": str(folder), "PATH": ""}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=60)
    assert (result.stdout, result.returncode) == ("soup\n", 0), result.stderr


@pytest.mark.parametrize("words", [["--help"], ["keys", "budgets", "--help"]])
def test_own_commands_do_not_read_distribution_metadata(words: list[str]) -> None:
    program = f"""
import atexit, os, sys
def look():
    heavy = {{"importlib.metadata", "toolway.parts.budgets.call_budgets", "toolway.parts.budgets.settings"}}
    if heavy & sys.modules.keys():
        os._exit(99)
atexit.register(look)
sys.argv[1:] = {words!r}
from toolway.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr

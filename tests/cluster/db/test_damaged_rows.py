"""One row of the cluster's database that cannot be read: it concerns itself alone, and grants nothing."""

from __future__ import annotations

import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.test_run_journal import BODY, Nodes, a_run, an_entry
from tests.cluster.db.test_run_journal import nodes as nodes  # a fixture
from toolway.cluster.db.client_state import SessionState, SessionStateStore
from toolway.cluster.db.tables import SessionRow
from toolway.workflows.journal import RunChange, RunDamaged, RunMessage, definition_hash

pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-D2")]
OTHER = {"steps": [{"name": "b", "tool": "s.pay"}]}

RUN_DAMAGES = {
    "start": "UPDATE runs SET start = set_byte(start, 20, get_byte(start, 20) # 1) WHERE id = 'bad'",
    "start, cut": "UPDATE runs SET start = '' WHERE id = 'bad'",
    "result": "UPDATE runs SET result = set_byte(result, 20, get_byte(result, 20) # 1) WHERE id = 'bad'",
    "caller": "UPDATE runs SET caller = 'mallory' WHERE id = 'bad'",
    "workflow": "UPDATE runs SET workflow = 'other' WHERE id = 'bad'",
    "key": "UPDATE runs SET key = 'other' WHERE id = 'bad'",
    "definition": "UPDATE runs SET definition = 'x' WHERE id = 'bad'",
}
PART_DAMAGES = {
    "entry": "UPDATE run_entries SET body = '\\x00' WHERE run = 'bad'",
    "entry of another step": "UPDATE run_entries SET path = 'b' WHERE run = 'bad'",
    "message": "UPDATE run_messages SET body = '\\x00' WHERE run = 'bad'",
    "definition, not JSON": "UPDATE run_definitions SET body = '{{' WHERE hash = '{hash}'",
    "definition, gone": "DELETE FROM run_definitions WHERE hash = '{hash}'",
}


@pytest.mark.parametrize("damage", [*RUN_DAMAGES, *PART_DAMAGES])
async def test_damaged_run_row_blocks_no_other_run(nodes: Nodes, damage: str) -> None:
    journal = await nodes.start("n1")
    bad = replace(a_run("bad"), definition=definition_hash(OTHER))
    await journal.create(bad, OTHER)
    names = [f"good{number}" for number in range(11)]
    for name in names:
        await journal.create(a_run(name), BODY)
    await journal.take(2.0, 50)
    for name in ("bad", *names):
        await journal.write(name, [an_entry("a")], RunChange(state="waiting", due=3.0))
        await journal.send(name, RunMessage(kind="answer", path="a", body={}))
    statement = {**RUN_DAMAGES, **PART_DAMAGES}[damage].format(hash=definition_hash(OTHER))
    with psycopg.connect(nodes.url, autocommit=True) as db:
        assert db.execute(statement.encode()).rowcount == 1
    shown = {each.id: each.state for each in await journal.list_runs(None, 50)}
    assert shown["bad"] == ("damaged" if damage in RUN_DAMAGES else "waiting")
    assert {each.id for each in await journal.take(4.0, 50)} == {"bad", *names}
    for name in names:
        _, _, entries, messages = await journal.load(name)
        assert len(entries) == len(messages) == 1
        await journal.write(name, [an_entry("a", "done")], RunChange(state="done", ended=5.0))
    with pytest.raises(RunDamaged) as found:
        await journal.load("bad")
    await journal.write("bad", [], RunChange(state="damaged", error=found.value.to_json(), ended=5.0))
    assert (await journal.get("bad")).state == "damaged"
    assert await journal.take(9.0, 50) == []
    await journal.send("bad", RunMessage(kind="resume", body={}))
    assert [each.id for each in await journal.take(9.0, 50)] == ["bad"]
    await journal.create(replace(bad, id="new"), OTHER)  # a new run repairs the definition that it shares
    assert (await journal.load("new"))[1] == OTHER


async def test_damaged_session_row_has_ended_and_others_continue(engine: AsyncEngine) -> None:
    sessions = SessionStateStore(engine)
    for id in ("bad", "good"):
        await sessions.update("t", id, lambda now: replace(now, level="error"), 60.0)
    async with engine.begin() as db:
        await db.execute(update(SessionRow).where(SessionRow.id == "bad").values(facts={"level": 7}))
    found = await sessions.load_many("t", ["bad", "good"])
    assert found == {"bad": SessionState(ended=True), "good": SessionState("error")}
    assert (await sessions.update("t", "bad", lambda now: replace(now, level="info"), 60.0)).ended


@pytest.mark.attack("A2-NJ1")
@pytest.mark.parametrize("column", ["workflow", "key", "caller", "definition"])
async def test_run_with_altered_columns_is_damaged(nodes: Nodes, column: str) -> None:
    journal = await nodes.start("n1")
    await journal.create(a_run("r1", key="k"), BODY)
    with psycopg.connect(nodes.url, autocommit=True) as db:
        db.execute(f"UPDATE runs SET {column} = 'other' WHERE id = 'r1'".encode())
    assert (await journal.get("r1")).state == "damaged"
    with pytest.raises(RunDamaged):
        await journal.load("r1")


@pytest.mark.attack("A2-held-J1")
@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE run_entries SET run = 'r1' WHERE run = 'r2' AND path = 'b'",  # a result of another run
        "UPDATE run_entries SET path = 'b' WHERE run = 'r1'",  # a result of another step
        "UPDATE run_messages SET run = 'r1' WHERE run = 'r2'",  # an approval of another run
        "INSERT INTO run_messages (tenant, run, body) VALUES ('acme', 'r1', '{\"kind\": \"answer\"}')",
    ],
)
async def test_forged_run_result_or_approval_is_damaged(nodes: Nodes, attack: str) -> None:
    journal = await nodes.start("n1")
    for name in ("r1", "r2"):
        await journal.create(a_run(name), BODY)
    await journal.take(2.0, 10)
    await journal.write("r1", [an_entry("a", "done")])
    await journal.write("r2", [an_entry("b", "done")])
    await journal.send("r2", RunMessage(kind="answer", path="q", body={"yes": True}))
    with psycopg.connect(nodes.url, autocommit=True) as db:
        assert db.execute(attack.encode()).rowcount == 1
    with pytest.raises(RunDamaged):
        await journal.load("r1")

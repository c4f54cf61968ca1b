"""One stored window of a caller that cannot be read: it concerns itself alone, and grants nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.test_damaged_rows import NOT_UTF8, damage
from toolway.part_api.database import SqliteDatabase
from toolway.parts.flows import Flows
from toolway.parts.flows.labels import LabelledCall
from toolway.parts.flows.store import FlowStore, FlowStoreError

pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-D2")]


def a_store(folder: Path) -> FlowStore:
    return FlowStore(SqliteDatabase(folder / "flows", Flows()))


@pytest.mark.parametrize("value", ["'x'", "7", "x'00'", NOT_UTF8])
async def test_damaged_window_affects_no_other_caller(tmp_path: Path, value: str) -> None:
    store = a_store(tmp_path)
    for caller in ("bad", "good"):
        await store.change(caller, lambda window: {"private": LabelledCall("s.t", 100.0)}, 100.0)
    await store.close()
    damage(tmp_path / "flows", f"UPDATE flow_windows SET entries = {value} WHERE key = 'bad'")
    store = a_store(tmp_path)
    assert list(await store.load(100.0)) == ["good"]
    with pytest.raises(FlowStoreError):  # not read as empty: a label would be missing
        await store.change("bad", lambda window: None, 100.0)
    await store.remove("bad")
    await store.change("bad", lambda window: None, 100.0)
    await store.close()

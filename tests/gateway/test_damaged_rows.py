"""One stored row that cannot be read: it concerns itself alone, and grants nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from toolway.errors import ConfigError
from toolway.gateway.principals import FileApiKeyStore
from toolway.middleware.idempotency import IdempotencyKey
from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore

pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-D2")]
NOT_UTF8 = "CAST(x'ff' AS TEXT)"


def damage(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as db:
        assert db.execute(statement).rowcount == 1


@pytest.mark.parametrize("column", ["outcome", "caller", "state"])
@pytest.mark.parametrize("value", ["'x'", "x'ff'", NOT_UTF8])
async def test_damaged_idempotency_key_affects_no_other_key(tmp_path: Path, column: str, value: str) -> None:
    store = SqliteIdempotencyStore(tmp_path / "keys")
    ids = {name: IdempotencyKey("anna", "s", "t", name) for name in ("bad", "good")}
    for id in ids.values():
        assert await store.claim(id, "f", "c") is None
        await store.finish(id, {"a": 1})
    store.close()
    damage(tmp_path / "keys", f"UPDATE keys SET {column} = {value} WHERE key = 'bad'")
    store = SqliteIdempotencyStore(tmp_path / "keys")
    found = await store.claim(ids["good"], "f", "d")
    assert found is not None and found.outcome == {"a": 1}
    assert await store.claim(IdempotencyKey("anna", "s", "t", "new"), "f", "d") is None
    store.close()


@pytest.mark.parametrize("damaged", [7, {}, {"id": 7}, {"hash": None}, {"access": "all"}, {"expires": "never"}])
async def test_damaged_api_key_grants_nothing(tmp_path: Path, damaged: Any) -> None:
    """The file also says whose logins have ended, so an entry that is left out might grant something: no key counts."""
    file = tmp_path / "keys.json"
    token, _ = FileApiKeyStore(file, "tw_owner").create_key_sync("bad", (), False, 1.0)
    content = json.loads(file.read_text())
    content["keys"] = [{**content["keys"][0], **damaged} if damaged and damaged != 7 else damaged]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as refused:
        FileApiKeyStore(file, "tw_owner").authenticate(token)
    assert refused.value.code == "E-KEYS-FILE"

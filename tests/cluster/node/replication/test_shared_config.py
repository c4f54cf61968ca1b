"""Files of configuration and what the record keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import a_sealer, an_integrity
from toolway.cluster.db.config_store import ConfigStore
from toolway.cluster.replication import config
from toolway.cluster.replication.config import ConfigSource, parse_document, read_document
from toolway.config.loader import LoadedConfig, load_file
from toolway.errors import ConfigError

FILE = """{
  // a comment
  "mcpServers": {
    "My Files": {"command": "files", "env": {"TOKEN": "${TOKEN}"}, "instances": 2},
    "bad": {"command": 5}
  },
  "toolway": {"timeout": 7}
}"""


def _written(folder: Path, text: str) -> str:
    file = folder / "servers.json"
    file.write_text(text)
    return str(file)


def test_stored_config_equals_the_loaded_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "of this node")
    file = _written(tmp_path, FILE)
    document, _ = read_document(file)
    assert document["mcpServers"]["My Files"]["env"] == {"TOKEN": "${TOKEN}"}
    loaded, direct = parse_document(document, "the record"), load_file(file)
    assert loaded.servers == direct.servers
    assert loaded.servers["my-files"].env == {"TOKEN": "of this node"}
    assert loaded.gateway == direct.gateway
    assert [problem.message for problem in loaded.issues] == [problem.message for problem in direct.issues]


def test_digest_ignores_whitespace_comments_and_order(tmp_path: Path) -> None:
    _, digest = read_document(_written(tmp_path, '{"mcpServers": {"a": {"command": "x"}, "b": {"url": "http://b"}}}'))
    _, same = read_document(_written(tmp_path, '{"servers":\n{"b": {"url": "http://b"}, "a": {"command": "x"},}} // x'))
    _, other = read_document(_written(tmp_path, '{"mcpServers": {"a": {"command": "y"}, "b": {"url": "http://b"}}}'))
    assert digest == same != other


def test_file_without_servers_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_document(_written(tmp_path, "[]"))


def _same(loaded: LoadedConfig | None, document: dict[str, Any]) -> bool:
    """Whether it is what reading all of it brings."""
    whole = parse_document(document, "the record")
    assert loaded is not None
    told = [(problem.server, problem.message) for problem in loaded.issues]
    assert sorted(told) == sorted((problem.server, problem.message) for problem in whole.issues)
    return (loaded.servers, loaded.gateway, loaded.network_policy) == (
        whole.servers,
        whole.gateway,
        whole.network_policy,
    )


CHANGES: list[dict[str, Any]] = [
    {"mcpServers": {"a": {"command": "a"}, "b": {"command": 5}, "c": {"url": "http://c.example"}}},
    {"mcpServers": {"a": {"command": "a2"}, "b": {"command": 5}, "d": {"command": "d"}}},
    {"mcpServers": {"a": {"command": "a2"}, "b": {"command": "b"}, "d": {"command": 6}}},
    {"mcpServers": {"a": {"command": "a2"}, "A": {"command": "A"}}},
    {"mcpServers": {"A": {"command": "A"}}},
    {"mcpServers": {"A": {"command": "A"}, "B": {"command": "B"}}, "toolway": {"timeout": 7}},
    {"mcpServers": {"A": {"command": "A"}, "b": {"command": "B"}}, "toolway": {"timeout": "soon"}},
    {"mcpServers": {"A": {"command": "A"}, "b": {"command": "C"}}, "toolway": {"timeout": "soon"}},
    {"mcpServers": {}},
]


@pytest.mark.anyio
async def test_incremental_reload_equals_a_full_load(engine: AsyncEngine) -> None:
    registry = ConfigStore(engine, a_sealer(), an_integrity())
    configuration = ConfigSource(registry, "acme")
    assert await configuration.reload("the record") is None
    for number, document in enumerate(CHANGES):
        await registry.import_document("acme", document, str(number))
        assert _same(await configuration.reload("the record"), document)


@pytest.mark.anyio
async def test_changed_server_is_parsed_without_the_others(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ConfigStore(engine, a_sealer(), an_integrity())
    configuration = ConfigSource(registry, "acme")
    servers = {f"s{number}": {"command": "x"} for number in range(50)}
    await registry.import_document("acme", {"mcpServers": servers}, "d1")
    before = await configuration.load("the record")
    read: list[int] = []

    def counted(document: dict[str, Any], where: str) -> LoadedConfig:
        read.append(len(document["mcpServers"]))
        return parse_document(document, where)

    monkeypatch.setattr(config, "parse_document", counted)
    await registry.put_server("acme", "s7", {"command": "y"})
    await registry.remove_server("acme", "s8")
    after = await configuration.reload("the record")
    assert read == [1] and before is not None and after is not None
    assert after.servers["s7"].command == "y" and "s8" not in after.servers
    assert after.servers["s9"] is before.servers["s9"]
    await configuration.reload("the record")
    assert read == [1, 0]

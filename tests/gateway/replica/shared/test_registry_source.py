"""Files of configuration and what the record keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.record.sealing import a_sealer
from toolway.cluster.record.registry import Registry
from toolway.config.formats import Loaded, read
from toolway.errors import ConfigError
from toolway.gateway.replica.shared import registry_source
from toolway.gateway.replica.shared.registry_source import Configuration, document_of, loaded_of

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


def test_what_went_through_the_record_is_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "of this node")
    file = _written(tmp_path, FILE)
    document, _ = document_of(file)
    assert document["mcpServers"]["My Files"]["env"] == {"TOKEN": "${TOKEN}"}
    loaded, direct = loaded_of(document, "the record"), read(file)
    assert loaded.servers == direct.servers
    assert loaded.servers["my-files"].env == {"TOKEN": "of this node"}
    assert loaded.gateway == direct.gateway
    assert [problem.what for problem in loaded.problems] == [problem.what for problem in direct.problems]


def test_spaces_comments_and_order_make_no_other_file(tmp_path: Path) -> None:
    _, digest = document_of(_written(tmp_path, '{"mcpServers": {"a": {"command": "x"}, "b": {"url": "http://b"}}}'))
    _, same = document_of(_written(tmp_path, '{"servers":\n{"b": {"url": "http://b"}, "a": {"command": "x"},}} // x'))
    _, other = document_of(_written(tmp_path, '{"mcpServers": {"a": {"command": "y"}, "b": {"url": "http://b"}}}'))
    assert digest == same != other


def test_a_file_without_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        document_of(_written(tmp_path, "[]"))


def _same(loaded: Loaded | None, document: dict[str, Any]) -> bool:
    """Whether it is what reading all of it brings."""
    whole = loaded_of(document, "the record")
    assert loaded is not None
    told = [(problem.server, problem.what) for problem in loaded.problems]
    assert sorted(told) == sorted((problem.server, problem.what) for problem in whole.problems)
    return (loaded.servers, loaded.gateway, loaded.addresses) == (whole.servers, whole.gateway, whole.addresses)


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
async def test_who_reads_what_changed_has_what_who_reads_everything_has(engine: AsyncEngine) -> None:
    registry = Registry(engine, a_sealer())
    configuration = Configuration(registry, "acme")
    assert await configuration.reload("the record") is None
    for number, document in enumerate(CHANGES):
        await registry.take("acme", document, str(number))
        assert _same(await configuration.reload("the record"), document)


@pytest.mark.anyio
async def test_a_server_that_changes_costs_what_it_is_whatever_the_others_are(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(engine, a_sealer())
    configuration = Configuration(registry, "acme")
    servers = {f"s{number}": {"command": "x"} for number in range(50)}
    await registry.take("acme", {"mcpServers": servers}, "d1")
    before = await configuration.load("the record")
    read: list[int] = []

    def counted(document: dict[str, Any], where: str) -> Loaded:
        read.append(len(document["mcpServers"]))
        return loaded_of(document, where)

    monkeypatch.setattr(registry_source, "loaded_of", counted)
    await registry.put("acme", "s7", {"command": "y"})
    await registry.remove("acme", "s8")
    after = await configuration.reload("the record")
    assert read == [1] and before is not None and after is not None
    assert after.servers["s7"].command == "y" and "s8" not in after.servers
    assert after.servers["s9"] is before.servers["s9"]
    await configuration.reload("the record")
    assert read == [1, 0]

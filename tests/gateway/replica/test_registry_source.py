"""Files of configuration and what the record keeps of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolway.config.formats import read
from toolway.errors import ConfigError
from toolway.gateway.replica.registry_source import document_of, loaded_of

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

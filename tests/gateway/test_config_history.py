"""Earlier configurations of a gateway: shown without secrets, compared, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolway.config.editing.document import Edit, apply_edit, read_file_bytes
from toolway.config.loader import LoadedConfig, load_file
from toolway.errors import ConfigError, NotFound
from toolway.gateway.admin.config import ConfigHistory

pytestmark = pytest.mark.anyio
SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


class Desk:
    """A file with two versions before it, and whoever takes what it says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        self.file = folder / "mcp.json"
        self.taken: list[list[str]] = []
        self.objection: ConfigError | None = None
        for names in ((), ("a",), ("a", "b")):
            apply_edit(Edit(self.file, read_file_bytes(self.file), self.text(names)))
        self.loaded: LoadedConfig = load_file(self.file)
        self.files = ConfigHistory(lambda: self.loaded, self.reload, {"XDG_STATE_HOME": str(folder / "state")})

    @staticmethod
    def text(names: tuple[str, ...]) -> bytes:
        entries = {name: {"command": "x", "env": {"GITHUB_TOKEN": SECRET + name}} for name in names}
        return json.dumps({"mcpServers": entries}, indent=2).encode()

    async def reload(self) -> dict[str, Any]:
        if self.objection is not None:
            raise self.objection
        self.loaded = load_file(self.file)
        self.taken.append(list(self.loaded.servers))
        return {"changed": {}}


async def test_the_file_is_shown_with_its_versions_and_without_secrets(tmp_path, monkeypatch):
    shown = Desk(tmp_path, monkeypatch).files.to_json()
    assert shown["file"] == str(tmp_path / "mcp.json") and '"b"' in shown["text"]
    assert [each["version"] for each in shown["versions"]] == [1, 2]
    assert SECRET not in json.dumps(shown)


async def test_what_going_back_changes_is_shown_first(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    diff = desk.files.diff(1)["diff"]
    assert '-    "b": {' in diff and SECRET not in diff
    for number in (0, 3):
        with pytest.raises(NotFound):
            desk.files.diff(number)


async def test_going_back_is_taken_at_once_and_can_be_taken_back(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    await desk.files.roll_back(1)
    await desk.files.roll_back(1)
    assert desk.taken == [["a"], ["a", "b"]]
    assert desk.file.read_bytes() == Desk.text(("a", "b"))


async def test_a_version_that_is_not_taken_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    desk.objection = ConfigError("it cannot be used")
    with pytest.raises(ConfigError):
        await desk.files.roll_back(2)
    assert desk.file.read_bytes() == Desk.text(("a", "b")) and desk.taken == []


async def test_every_value_is_told_with_the_line_where_it_is_written(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    origins = {each["path"]: each for each in desk.files.value_origins("b")}
    assert origins["command"]["value"] == '"x"' and SECRET not in json.dumps(origins)
    written = desk.file.read_text().splitlines()[origins["env.GITHUB_TOKEN"]["line"] - 1]
    assert SECRET + "b" in written
    assert desk.files.value_origins("none") == []


async def test_only_harmless_settings_of_a_server_are_changed_in_the_file(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    before = desk.file.read_bytes()
    wrongs: list[dict[str, Any]] = [{"command": "sh"}, {"env": {}}, {"enabled": "no"}, {"timeout": {}}]
    for wrong in wrongs:
        with pytest.raises(ValueError):
            await desk.files.change_server("a", wrong)
    assert desk.file.read_bytes() == before and desk.taken == []
    await desk.files.change_server("a", {"enabled": False, "timeout": "45s", "lazy": None})
    assert desk.loaded.servers["a"].timeout.total == 45.0 and not desk.loaded.servers["a"].enabled
    await desk.files.change_server("a", {"enabled": None, "timeout": None})
    assert json.loads(desk.file.read_bytes()) == json.loads(before)


async def test_a_server_is_removed_from_the_file_and_restored_by_a_rollback(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    with pytest.raises(NotFound):
        await desk.files.remove_server("none")
    assert (await desk.files.remove_server("a"))["removed"] == "a"
    await desk.files.roll_back(1)
    assert desk.taken == [["b"], ["a", "b"]] and desk.file.read_bytes() == Desk.text(("a", "b"))
    desk.objection = ConfigError("it cannot be used")
    with pytest.raises(ConfigError):
        await desk.files.remove_server("b")
    assert desk.file.read_bytes() == Desk.text(("a", "b"))

"""Earlier configurations of a gateway: shown without secrets, compared, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolway.config.editing.document import Edit, apply_edit, read_file_bytes
from toolway.config.loader import LoadedConfig, load_file
from toolway.errors import ConfigError, NotFound
from toolway.gateway.admin.config import ConfigHistory, summarize_changes

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
    with pytest.raises(ConfigError):  # a preview finds what a reload would reject
        await desk.files.change_server("a", {"timeout": "soon"}, preview=True)
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


async def test_versions_say_what_their_change_did(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    assert [each["changes"] for each in desk.files.to_json()["versions"]] == [["added b"], ["added a"]]
    assert summarize_changes(
        Desk.text(("a",)), b'{"mcpServers": {"a": {"command": "y"}}, "toolway": {"pins": {}}}'
    ) == [
        "changed a",
        "added toolway.pins",
    ]
    assert summarize_changes(b"no JSON", Desk.text(())) == []
    assert summarize_changes(Desk.text(("a",)), b"// a comment\n" + Desk.text(("a",))) == []
    assert summarize_changes(Desk.text(()), Desk.text(tuple("abcdefghijk")))[-1] == "and 11 in total"


async def test_a_server_is_added_to_the_file_after_a_preview_that_changes_nothing(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    entry = {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}}
    shown = await desk.files.add_server("new", entry, preview=True)
    assert '+    "new": {' in shown["diff"] and SECRET not in shown["diff"]
    assert desk.file.read_bytes() == Desk.text(("a", "b"))
    added = await desk.files.add_server("new", entry)
    assert (added["held"], desk.taken) == (False, [["a", "b", "new"]])
    for taken in ("new", "a", "Not a name"):
        with pytest.raises(ConfigError):
            await desk.files.add_server(taken, entry)
    desk.objection = ConfigError("it cannot be used")
    with pytest.raises(ConfigError):
        await desk.files.add_server("more", entry)
    assert list(json.loads(desk.file.read_bytes())["mcpServers"]) == ["a", "b", "new"]


async def test_a_group_is_added_changed_and_removed_in_the_file(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    before = desk.file.read_bytes()
    assert '"triage"' in (await desk.files.set_group("triage", {"tools": ["a.*"]}, preview=True))["diff"]
    assert desk.file.read_bytes() == before
    await desk.files.set_group("triage", {"tools": ["a.*", "!a.delete_*"], "search": True})
    await desk.files.set_group("triage", {"search": False})
    assert desk.loaded.gateway.groups["triage"].tools == ("a.*", "!a.delete_*")
    wrongs: list[dict[str, Any]] = [{"tools": "a.*"}, {"tools": [""]}, {"tools": ["x"] * 501}, {"rename": {}}]
    for wrong in wrongs:
        with pytest.raises(ValueError):
            await desk.files.set_group("triage", wrong)
    await desk.files.set_group("triage", None)
    assert desk.loaded.gateway.groups == {}
    with pytest.raises(NotFound):
        await desk.files.set_group("triage", None)


async def test_a_deny_list_can_only_grow(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    assert "delete" in (await desk.files.change_server("a", {"deniedTools": ["delete"]}, preview=True))["diff"]
    await desk.files.change_server("a", {"deniedTools": ["delete"]})
    await desk.files.change_server("a", {"deniedTools": ["delete", "drop"]})
    assert desk.loaded.servers["a"].denied_tools == ("delete", "drop")
    for smaller in (["drop"], [], None):
        with pytest.raises(ValueError):
            await desk.files.change_server("a", {"deniedTools": smaller})


def edited(shown: str, change: Any) -> str:
    """Return the text of the file after a person changed its value."""
    value = json.loads(shown)
    change(value)
    return json.dumps(value)


async def test_the_values_that_a_person_edits_are_changed_and_the_secrets_stay(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    desk.file.write_bytes(b"// mine\n" + desk.file.read_bytes())
    desk.loaded, asked = load_file(desk.file), []
    shown = desk.files.to_json()["text"].removeprefix("// mine\n")
    before = desk.files.to_json()["text"]

    def change(value: Any) -> None:
        value["mcpServers"]["a"]["timeout"] = "45s"
        value["mcpServers"]["new"] = {"url": "https://mcp.example.com/mcp"}
        del value["mcpServers"]["b"]
        value["toolway"] = {"groups": {"triage": {"tools": ["a.*"]}}}

    after = edited(shown, change)

    def admit(name: str, entry: Any) -> None:
        asked.append(name)

    diff = (await desk.files.change_text(before, after, admit, preview=True))["diff"]
    assert '+    "new": {' in diff and SECRET not in diff and desk.taken == []
    await desk.files.change_text(before, after, admit)
    assert desk.taken == [["a", "new"]] and asked == ["new", "new"]
    assert desk.loaded.servers["a"].env["GITHUB_TOKEN"] == SECRET + "a"
    assert desk.loaded.servers["a"].timeout.total == 45.0 and list(desk.loaded.gateway.groups) == ["triage"]
    assert desk.file.read_text().startswith("// mine\n")
    with pytest.raises(ConfigError, match="changed meanwhile"):
        await desk.files.change_text(before, after, admit)


FORBIDDEN: dict[str, Any] = {
    "command": lambda value: value["mcpServers"]["a"].update(command="sh"),
    "secret": lambda value: value["mcpServers"]["a"]["env"].update(GITHUB_TOKEN="mine"),
    "secret, copied": lambda value: value["mcpServers"].update(new=value["mcpServers"]["a"]),
    "rules": lambda value: value.update(toolway={"gateway": {"allowedCommands": ["sh"]}}),
    "all servers": lambda value: value.update(mcpServers=[]),
    "the deny list": lambda value: value["mcpServers"]["a"].update(deniedTools=[]),
    "an entry as text": lambda value: value["mcpServers"].update(new="sh"),
}


@pytest.mark.parametrize("change", FORBIDDEN)
async def test_nothing_else_is_changed_by_an_edited_text(tmp_path, monkeypatch, change):
    desk = Desk(tmp_path, monkeypatch)
    await desk.files.change_server("a", {"deniedTools": ["delete"]})
    content, shown = desk.file.read_bytes(), desk.files.to_json()["text"]
    with pytest.raises((ConfigError, ValueError)):
        await desk.files.change_text(shown, edited(shown, FORBIDDEN[change]), lambda name, entry: None)
    with pytest.raises(ConfigError):
        await desk.files.change_text(shown, "no JSON", lambda name, entry: None)
    assert desk.file.read_bytes() == content


async def test_an_entry_that_is_not_admitted_changes_nothing(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    content, shown = desk.file.read_bytes(), desk.files.to_json()["text"]

    def reject(name: str, entry: Any) -> None:
        raise ConfigError("not allowed")

    add = edited(shown, lambda value: value["mcpServers"].update(new={"command": "sh"}))
    with pytest.raises(ConfigError, match="not allowed"):
        await desk.files.change_text(shown, add, reject)
    assert desk.file.read_bytes() == content

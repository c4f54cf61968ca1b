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


class ConfigEditor:
    """A file with two earlier versions, and a gateway that reloads it."""

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


async def test_file_is_shown_with_versions_and_without_secrets(tmp_path, monkeypatch):
    shown = ConfigEditor(tmp_path, monkeypatch).files.to_json()
    assert shown["file"] == str(tmp_path / "mcp.json") and '"b"' in shown["text"]
    assert [each["version"] for each in shown["versions"]] == [1, 2]
    assert SECRET not in json.dumps(shown)


async def test_rollback_diff_is_shown_without_secrets(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    diff = editor.files.diff(1)["diff"]
    assert '-    "b": {' in diff and SECRET not in diff
    for number in (0, 3):
        with pytest.raises(NotFound):
            editor.files.diff(number)


async def test_rollback_applies_at_once_and_can_be_undone(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    await editor.files.roll_back(1)
    await editor.files.roll_back(1)
    assert editor.taken == [["a"], ["a", "b"]]
    assert editor.file.read_bytes() == ConfigEditor.text(("a", "b"))


async def test_rejected_rollback_leaves_the_file_unchanged(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    editor.objection = ConfigError("it cannot be used")
    with pytest.raises(ConfigError):
        await editor.files.roll_back(2)
    assert editor.file.read_bytes() == ConfigEditor.text(("a", "b")) and editor.taken == []


async def test_value_origins_include_their_line(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    origins = {each["path"]: each for each in editor.files.value_origins("b")}
    assert origins["command"]["value"] == '"x"' and SECRET not in json.dumps(origins)
    written = editor.file.read_text().splitlines()[origins["env.GITHUB_TOKEN"]["line"] - 1]
    assert SECRET + "b" in written
    assert editor.files.value_origins("none") == []


async def test_only_harmless_server_settings_are_changed_in_the_file(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    before = editor.file.read_bytes()
    with pytest.raises(ConfigError):  # a preview finds what a reload would reject
        await editor.files.change_server("a", {"timeout": "soon"}, preview=True)
    wrongs: list[dict[str, Any]] = [{"command": "sh"}, {"env": {}}, {"enabled": "no"}, {"timeout": {}}]
    for wrong in wrongs:
        with pytest.raises(ValueError):
            await editor.files.change_server("a", wrong)
    assert editor.file.read_bytes() == before and editor.taken == []
    await editor.files.change_server("a", {"enabled": False, "timeout": "45s", "lazy": None})
    assert editor.loaded.servers["a"].timeout.total == 45.0 and not editor.loaded.servers["a"].enabled
    await editor.files.change_server("a", {"enabled": None, "timeout": None})
    assert json.loads(editor.file.read_bytes()) == json.loads(before)


async def test_removed_server_is_restored_by_a_rollback(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    with pytest.raises(NotFound):
        await editor.files.remove_server("none")
    assert (await editor.files.remove_server("a"))["removed"] == "a"
    await editor.files.roll_back(1)
    assert editor.taken == [["b"], ["a", "b"]] and editor.file.read_bytes() == ConfigEditor.text(("a", "b"))
    editor.objection = ConfigError("it cannot be used")
    with pytest.raises(ConfigError):
        await editor.files.remove_server("b")
    assert editor.file.read_bytes() == ConfigEditor.text(("a", "b"))


async def test_versions_summarize_their_changes(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    assert [each["changes"] for each in editor.files.to_json()["versions"]] == [["added b"], ["added a"]]
    assert summarize_changes(
        ConfigEditor.text(("a",)), b'{"mcpServers": {"a": {"command": "y"}}, "toolway": {"pins": {}}}'
    ) == [
        "changed a",
        "added toolway.pins",
    ]
    assert summarize_changes(b"no JSON", ConfigEditor.text(())) == []
    assert summarize_changes(ConfigEditor.text(("a",)), b"// a comment\n" + ConfigEditor.text(("a",))) == []
    assert summarize_changes(ConfigEditor.text(()), ConfigEditor.text(tuple("abcdefghijk")))[-1] == "and 11 in total"


async def test_server_is_added_to_the_file_after_a_preview(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    entry = {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}}
    shown = await editor.files.add_server("new", entry, preview=True)
    assert '+    "new": {' in shown["diff"] and SECRET not in shown["diff"]
    assert editor.file.read_bytes() == ConfigEditor.text(("a", "b"))
    added = await editor.files.add_server("new", entry)
    assert (added["needs_review"], editor.taken) == (False, [["a", "b", "new"]])
    for taken in ("new", "a", "Not a name"):
        with pytest.raises(ConfigError):
            await editor.files.add_server(taken, entry)
    editor.objection = ConfigError("it cannot be used")
    with pytest.raises(ConfigError):
        await editor.files.add_server("more", entry)
    assert list(json.loads(editor.file.read_bytes())["mcpServers"]) == ["a", "b", "new"]


async def test_toolset_is_added_changed_and_removed_in_the_file(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    before = editor.file.read_bytes()
    assert '"triage"' in (await editor.files.set_toolset("triage", {"tools": ["a.*"]}, preview=True))["diff"]
    assert editor.file.read_bytes() == before
    await editor.files.set_toolset("triage", {"tools": ["a.*", "!a.delete_*"], "search": True})
    await editor.files.set_toolset("triage", {"search": False})
    assert editor.loaded.gateway.toolsets["triage"].tools == ("a.*", "!a.delete_*")
    wrongs: list[dict[str, Any]] = [{"tools": "a.*"}, {"tools": [""]}, {"tools": ["x"] * 501}, {"rename": {}}]
    for wrong in wrongs:
        with pytest.raises(ValueError):
            await editor.files.set_toolset("triage", wrong)
    await editor.files.set_toolset("triage", None)
    assert editor.loaded.gateway.toolsets == {}
    with pytest.raises(NotFound):
        await editor.files.set_toolset("triage", None)


async def test_deny_list_can_only_grow(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    assert "delete" in (await editor.files.change_server("a", {"deniedTools": ["delete"]}, preview=True))["diff"]
    await editor.files.change_server("a", {"deniedTools": ["delete"]})
    await editor.files.change_server("a", {"deniedTools": ["delete", "drop"]})
    assert editor.loaded.servers["a"].denied_tools == ("delete", "drop")
    for smaller in (["drop"], [], None):
        with pytest.raises(ValueError):
            await editor.files.change_server("a", {"deniedTools": smaller})


def edited(shown: str, change: Any) -> str:
    """Return the text of the file after a user changed its value."""
    value = json.loads(shown)
    change(value)
    return json.dumps(value)


async def test_edited_text_changes_values_and_keeps_secrets(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    editor.file.write_bytes(b"// mine\n" + editor.file.read_bytes())
    editor.loaded, asked = load_file(editor.file), []
    shown = editor.files.to_json()["text"].removeprefix("// mine\n")
    before = editor.files.to_json()["text"]

    def change(value: Any) -> None:
        value["mcpServers"]["a"]["timeout"] = "45s"
        value["mcpServers"]["new"] = {"url": "https://mcp.example.com/mcp"}
        del value["mcpServers"]["b"]
        value["toolway"] = {"toolsets": {"triage": {"tools": ["a.*"]}}}

    after = edited(shown, change)

    def admit(name: str, entry: Any) -> None:
        asked.append(name)

    diff = (await editor.files.change_text(before, after, admit, preview=True))["diff"]
    assert '+    "new": {' in diff and SECRET not in diff and editor.taken == []
    await editor.files.change_text(before, after, admit)
    assert editor.taken == [["a", "new"]] and asked == ["new", "new"]
    assert editor.loaded.servers["a"].env["GITHUB_TOKEN"] == SECRET + "a"
    assert editor.loaded.servers["a"].timeout.total == 45.0 and list(editor.loaded.gateway.toolsets) == ["triage"]
    assert editor.file.read_text().startswith("// mine\n")
    with pytest.raises(ConfigError, match="changed while you were editing"):
        await editor.files.change_text(before, after, admit)


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
async def test_forbidden_change_in_an_edited_text_is_rejected(tmp_path, monkeypatch, change):
    editor = ConfigEditor(tmp_path, monkeypatch)
    await editor.files.change_server("a", {"deniedTools": ["delete"]})
    content, shown = editor.file.read_bytes(), editor.files.to_json()["text"]
    with pytest.raises((ConfigError, ValueError)):
        await editor.files.change_text(shown, edited(shown, FORBIDDEN[change]), lambda name, entry: None)
    with pytest.raises(ConfigError):
        await editor.files.change_text(shown, "no JSON", lambda name, entry: None)
    assert editor.file.read_bytes() == content


async def test_rejected_entry_changes_nothing(tmp_path, monkeypatch):
    editor = ConfigEditor(tmp_path, monkeypatch)
    content, shown = editor.file.read_bytes(), editor.files.to_json()["text"]

    def reject(name: str, entry: Any) -> None:
        raise ConfigError("not allowed")

    add = edited(shown, lambda value: value["mcpServers"].update(new={"command": "sh"}))
    with pytest.raises(ConfigError, match="not allowed"):
        await editor.files.change_text(shown, add, reject)
    assert editor.file.read_bytes() == content

"""What other tools have lost, each as a test: servers, keys, comments, working directories."""

import json

import pytest

from tests.config.clients.fixtures import EDITED, NAMES, carry_out, folders, place_of, placed, switch_on
from toolway.config.clients import CLIENTS, find_client_files, plan_export, read_client_file, to_portable, toolway_file
from toolway.config.editing.document import ConfigDocument, apply_edit
from toolway.errors import ConfigError

NEW = {"command": "npx", "args": ["-y", "new"], "env": {"A": "b"}}
IMAGE = {"command": "docker", "args": ["run", "-i", "--rm", "--init", "-e", "A", "new"], "env": {"A": "b"}}


def new_for(name):
    return IMAGE if name.startswith("docker") else NEW


def written(place):
    return ConfigDocument(place.path, place.format).get(place.root)


def values(container):
    return list(container.values()) if isinstance(container, dict) else container


@pytest.mark.parametrize("name", EDITED)
def test_added_server_keeps_other_servers_and_lines(name, tmp_path):
    place = placed(tmp_path, name)
    before, lines = written(place), place.path.read_text().splitlines()
    export = plan_export(place, {"new": new_for(name)})
    assert export.changed == ("new",)
    apply_edit(export.edit, tmp_path / "kept")
    after = iter(place.path.read_text().splitlines())
    assert all(any(line.rstrip(",") == each.rstrip(",") for each in after) for line in lines)  # all, in their order
    kept = [each for each in values(written(place)) if each in values(before)]
    assert kept == values(before)
    assert len(written(place)) == len(before) + 1


@pytest.mark.parametrize("name", EDITED)
def test_removed_server_keeps_other_servers(name, tmp_path):
    place = placed(tmp_path, name)
    text = place.path.read_bytes()
    apply_edit(plan_export(place, {"new": new_for(name)}).edit, tmp_path / "kept")
    apply_edit(plan_export(place, {}, remove=["new"]).edit, tmp_path / "kept")
    assert place.path.read_bytes() == text or name == "kilo.user.json" or same_but_commas(text, place.path.read_bytes())


def same_but_commas(one, other):
    return one.replace(b",", b"") == other.replace(b",", b"")


@pytest.mark.parametrize("name", sorted({*NAMES} - {*EDITED}))
def test_yaml_file_is_not_changed_but_snippet_is_given(name, tmp_path):
    place = placed(tmp_path, name)
    text, gone = place.path.read_bytes(), read_client_file(place).entries[0].name
    export = plan_export(place, {"new": new_for(name)}, remove=[gone])
    assert not export.edit.has_changes and export.snippet is not None
    assert export.snippet.removed == (gone,)
    assert "new" in export.snippet.text() and gone not in export.snippet.text()
    carry_out(place, export, tmp_path / "kept")
    assert gone not in [entry.name for entry in read_client_file(place).entries]
    assert "new" in [entry.name for entry in read_client_file(place).entries]
    place.path.write_bytes(text)
    assert plan_export(place, {}).snippet is None


def test_yaml_snippet_masks_secrets_and_quotes_text(tmp_path):
    place = place_of(tmp_path, "goose", "user")
    place.path.parent.mkdir(parents=True)
    place.path.write_text("extensions: {s: {type: stdio, cmd: y, envs: {API_KEY: sk-0123456789abcdefghij}}}")
    entry = {"command": "x", "args": ["on", "0o17", "12", "a: b"], "env": {"API_KEY": "sk-0123456789abcdefghij"}}
    export = plan_export(place, {"s": entry})
    assert export.snippet is not None
    assert "sk-0123" not in export.snippet.text() and "API_KEY: '***'" in export.snippet.text()
    place.path.write_text(export.snippet.text())
    assert read_client_file(place).entries[0].value["args"] == ["on", "0o17", "12", "a: b"]


@pytest.mark.parametrize("name", NAMES)
def test_unknown_keys_survive_a_changed_entry(name, tmp_path):
    place = placed(tmp_path, name)
    entry = read_client_file(place).entries[0]
    changed = {**to_portable(entry), "args": [*entry.value.get("args", []), "--more"]}
    if "url" in changed:
        changed = {**to_portable(entry), "url": "https://moved.example/mcp"}
    before = {json.dumps(each, sort_keys=True, default=str) for each in values(written(place)) if each != entry.raw}
    export = plan_export(place, {entry.name: changed})
    carry_out(place, export, tmp_path / "kept")
    found = next(each for each in read_client_file(place).entries if each.name == entry.name)
    assert found.value.get("extras") == entry.value.get("extras")
    after = {json.dumps(each, sort_keys=True, default=str) for each in values(written(place))}
    assert before - after == set()
    added = [line for line in export.edit.diff().splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert (1 <= len(added) <= 2) if name in EDITED else not added


@pytest.mark.parametrize("name", NAMES)
def test_unknown_keys_survive_export_without_extras(name, tmp_path):
    place = placed(tmp_path, name)
    entry = read_client_file(place).entries[0]
    changed = {key: item for key, item in to_portable(entry).items() if key != "extras"}
    changed |= {"url": "https://moved.example/mcp"} if "url" in changed else {"args": [*changed.get("args", []), "x"]}
    carry_out(place, plan_export(place, {entry.name: changed}), tmp_path / "kept")
    found = next(each for each in read_client_file(place).entries if each.name == entry.name)
    assert found.value.get("extras") == entry.value.get("extras")


def test_client_specific_keys_survive_a_round_trip(tmp_path):
    vscode = placed(tmp_path, "vscode.project.json")
    entry = next(each for each in read_client_file(vscode).entries if each.name == "perplexity")
    cursor = place_of(tmp_path, "cursor", "user")
    export = plan_export(cursor, {"perplexity": to_portable(entry)})
    assert {"dev", "sandboxEnabled"} <= {loss.message.split()[-3] for loss in export.unsupported}
    apply_edit(export.edit, tmp_path / "kept")
    assert "dev" not in written(cursor)["perplexity"]
    assert plan_export(vscode, {"perplexity": to_portable(entry)}).edit.diff() == ""


# -- working directories -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["claude-code", "cursor", "vscode", "gemini-cli", "codex", "goose", "zed"])
def test_project_server_gets_project_directory(client, tmp_path):
    place = place_of(tmp_path, client, "project")
    carry_out(place, plan_export(place, {"s": {"command": "./run.sh"}}), tmp_path / "kept")
    entry = read_client_file(place_of(tmp_path, client, "project")).entries[0]
    assert to_portable(entry)["cwd"] == str(folders(tmp_path)[1])


def test_import_from_subfolder_gets_project_directory(tmp_path):
    project = folders(tmp_path)[1]
    (project / ".mcp.json").write_text('{"mcpServers": {"s": {"command": "./run.sh"}}}')
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    places = find_client_files({"HOME": str(tmp_path / "home")}, below, "linux")
    place = next(each for each in places if (each.client, each.scope) == ("claude-code", "project"))
    assert to_portable(read_client_file(place).entries[0])["cwd"] == str(project)


def test_relative_cwd_is_resolved_in_project(tmp_path):
    place = placed(tmp_path, "vscode.project.json")
    place.path.write_text('{"servers": {"s": {"type": "stdio", "command": "x", "cwd": "sub"}}}')
    assert to_portable(read_client_file(place).entries[0])["cwd"] == str(folders(tmp_path)[1] / "sub")


def test_cwd_ignored_by_client_is_not_used(tmp_path):
    """Claude Code starts servers in the project's directory, whatever `cwd` says."""
    place = place_of(tmp_path, "claude-code", "project")
    place.path.write_text('{"mcpServers": {"s": {"command": "x", "cwd": "/elsewhere"}}}')
    entry = read_client_file(place).entries[0]
    assert to_portable(entry)["cwd"] == str(folders(tmp_path)[1])
    assert plan_export(place, {"s": to_portable(entry)}).edit.diff() == ""


def test_unsupported_cwd_is_reported(tmp_path):
    place = place_of(tmp_path, "claude-code", "user")
    export = plan_export(place, {"s": {"command": "x", "cwd": "/srv/x"}})
    (loss,) = export.unsupported
    assert (loss.server, loss.code) == ("s", "E-CLIENT-FIELD")
    assert "cwd" in loss.message and "directory" in loss.detail


def test_workspace_folder_variable_is_expanded(tmp_path):
    project = folders(tmp_path)[1]
    place = placed(tmp_path, "vscode.project.json")
    entry = next(each for each in read_client_file(place).entries if each.name == "perplexity")
    moved = to_portable(entry)
    assert moved["args"][-1] == f"{project}/data"
    assert moved["envFile"] == f"{project}/.env"
    assert moved["env"]["HOME_DIR"] == "${HOME}"


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_unreadable_file_is_reported_and_never_overwritten(client, tmp_path):
    place = place_of(tmp_path, client, "user")
    place.path.parent.mkdir(parents=True, exist_ok=True)
    place.path.write_text('{"half": [\n')
    switch_on(place, "half")
    imported = read_client_file(place)
    assert imported.entries == ()
    assert [problem.code for problem in imported.issues] == ["E-CONFIG-SYNTAX"]
    with pytest.raises(ConfigError) as caught:
        plan_export(place, {"new": new_for(client)})
    assert caught.value.code == "E-CONFIG-SYNTAX"


def test_servers_key_of_wrong_type_is_not_overwritten(tmp_path):
    place = place_of(tmp_path, "cursor", "user")
    place.path.parent.mkdir(parents=True)
    place.path.write_text('{"mcpServers": ["something", "else"]}')
    with pytest.raises(ConfigError) as caught:
        plan_export(place, {"new": NEW})
    assert caught.value.code == "E-EDIT-SHAPE"


def test_other_projects_and_user_servers_are_kept(tmp_path):
    place = placed(tmp_path, "claude-code.local.json")
    before = ConfigDocument(place.path).value
    apply_edit(plan_export(place, {"new": NEW}, remove=["here"]).edit, tmp_path / "kept")
    after = ConfigDocument(place.path).value
    project = after["projects"][str(folders(tmp_path)[1])]
    assert list(project.pop("mcpServers")) == ["new"]
    before["projects"][str(folders(tmp_path)[1])].pop("mcpServers")
    assert after == before


def test_untranslatable_secret_keeps_the_clients_value(tmp_path):
    """The client asks a user for it, we keep it in our store: an export must not take it away."""
    place = placed(tmp_path, "vscode.project.json")
    entry = next(each for each in read_client_file(place).entries if each.name == "perplexity")
    ours = {**to_portable(entry), "args": ["other"]}
    assert ours["env"]["PERPLEXITY_API_KEY"] == "${keyring:perplexity.perplexity-key}"
    apply_edit(plan_export(place, {"perplexity": ours}).edit, tmp_path / "kept")
    assert written(place)["perplexity"]["env"]["PERPLEXITY_API_KEY"] == "${input:perplexity-key}"


def test_toolway_file_keeps_its_comments(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x", "maxRetries": 2} // keep\n  },\n}\n')
    place = toolway_file(path)
    apply_edit(plan_export(place, {"b": {"command": "y", "lazy": True}}).edit, tmp_path / "kept")
    assert path.read_text() == (
        '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x", "maxRetries": 2}, // keep\n'
        '    "b": {\n      "command": "y",\n      "lazy": true\n    }\n  },\n}\n'
    )
    assert [entry.name for entry in read_client_file(toolway_file(path)).entries] == ["a", "b"]


def test_export_diff_masks_secrets(tmp_path):
    place = place_of(tmp_path, "cursor", "user")
    entry = {"command": "x", "env": {"API_KEY": "sk-0123456789abcdefghij"}, "args": ["--token", "canary-0123456789"]}
    web = {"url": "https://u:canary-pass@x.example/mcp", "headers": {"Authorization": "Bearer canary-bearer-1"}}
    diff = plan_export(place, {"s": entry, "w": web}).edit.diff()
    assert "***" in diff
    assert [word for word in ("sk-0123", "canary") if word in diff] == []


@pytest.mark.parametrize("name", NAMES)
def test_openapi_server_is_not_exported(name, tmp_path):
    place = placed(tmp_path, name)
    api = {"type": "openapi", "url": "https://api.example", "openapi": {"url": "https://api.example/openapi.json"}}
    export = plan_export(place, {"pets": api})
    assert export.changed == ()
    assert [loss.severity for loss in export.unsupported] == ["error"]
    assert "toolway connect" in export.unsupported[0].hint

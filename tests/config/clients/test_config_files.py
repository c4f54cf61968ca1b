"""Where every client keeps its files, on each system."""

from pathlib import Path

import pytest

from toolway.config.clients import CLIENTS, find_client_files, get_client
from toolway.errors import ConfigError

HOME, HERE = Path("/home/me"), Path("/home/me/code")


def paths(platform, **environment):
    home = {"USERPROFILE" if platform == "win32" else "HOME": str(HOME)}
    places = find_client_files({**home, **environment}, HERE, platform)
    return {(place.client, place.scope): [] for place in places}, places


def found(platform, client, scope="user", **environment):
    _, places = paths(platform, **environment)
    return [str(place.path) for place in places if (place.client, place.scope) == (client, scope)]


def test_every_client_has_a_place_on_every_system():
    for platform in ("linux", "darwin", "win32"):
        _, places = paths(platform)
        assert {place.client for place in places} == CLIENTS.keys()
        assert len({(place.path, place.root, place.client) for place in places}) == len(places)


@pytest.mark.parametrize(
    ("client", "linux", "darwin", "win32"),
    [
        (
            "claude-desktop",
            ".config/Claude/claude_desktop_config.json",
            "Library/Application Support/Claude/claude_desktop_config.json",
            "AppData/Roaming/Claude/claude_desktop_config.json",
        ),
        (
            "vscode",
            ".config/Code/User/mcp.json",
            "Library/Application Support/Code/User/mcp.json",
            "AppData/Roaming/Code/User/mcp.json",
        ),
        (
            "goose",
            ".config/goose/config.yaml",
            ".config/goose/config.yaml",
            "AppData/Roaming/Block/goose/config/config.yaml",
        ),
        ("zed", ".config/zed/settings.json", ".config/zed/settings.json", "AppData/Roaming/Zed/settings.json"),
        ("cursor", ".cursor/mcp.json", ".cursor/mcp.json", ".cursor/mcp.json"),
        ("codex", ".codex/config.toml", ".codex/config.toml", ".codex/config.toml"),
        ("lm-studio", ".lmstudio/mcp.json", ".lmstudio/mcp.json", ".lmstudio/mcp.json"),
        ("opencode", ".config/opencode/opencode.json", ".config/opencode/opencode.json", None),
    ],
)
def test_user_config_path_of_each_client(client, linux, darwin, win32):
    for platform, wanted in (("linux", linux), ("darwin", darwin), ("win32", win32)):
        if wanted:
            assert found(platform, client)[0] == str(HOME / wanted)


def test_alternative_config_paths_are_searched():
    assert found("linux", "claude-desktop")[1] == "/home/me/.config/claude/claude_desktop_config.json"
    assert found("linux", "claude-code")[1] == "/home/me/.config/claude-code/mcp.json"
    assert found("darwin", "zed")[1] == "/home/me/Library/Application Support/Zed/settings.json"
    assert found("linux", "antigravity") == [
        "/home/me/.gemini/config/mcp_config.json",
        "/home/me/.gemini/antigravity/mcp_config.json",
    ]
    assert "/home/me/.vscode-server/data/User/mcp.json" in found("linux", "vscode")


@pytest.mark.parametrize(
    ("client", "variable", "path"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "/x/.claude.json"),
        ("codex", "CODEX_HOME", "/x/config.toml"),
        ("copilot-cli", "COPILOT_HOME", "/x/mcp-config.json"),
        ("goose", "XDG_CONFIG_HOME", "/x/goose/config.yaml"),
    ],
)
def test_environment_variable_sets_client_folder(client, variable, path):
    assert found("linux", client, **{variable: "/x"})[0] == path


def test_claude_code_has_four_scopes():
    _, places = paths("linux")
    mine = {place.scope: place for place in places if place.client == "claude-code"}
    assert mine["local"].root == ("projects", str(HERE), "mcpServers")
    assert mine["local"].directory == mine["project"].directory == HERE
    assert mine["user"].directory is None
    assert str(mine["managed"].path) == "/etc/claude-code/managed-mcp.json"


def test_project_file_search_stops_at_repository_root(tmp_path):
    top = tmp_path / "repo"
    deep = top / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / ".mcp.json").write_text("{}")
    for folder, wanted in ((tmp_path, tmp_path), (top, top)):
        if folder == top:
            (top / ".git").mkdir()
        places = find_client_files({"HOME": "/home/me"}, deep, "linux")
        project = next(each for each in places if (each.client, each.scope) == ("claude-code", "project"))
        assert project.directory == (wanted if wanted == tmp_path else deep)
    (top / ".mcp.json").write_text("{}")
    places = find_client_files({"HOME": "/home/me"}, deep, "linux")
    project = next(each for each in places if (each.client, each.scope) == ("claude-code", "project"))
    assert (project.directory, project.exists) == (top, True)


def test_no_file_is_found_twice_in_home(tmp_path):
    places = find_client_files({"HOME": str(tmp_path)}, tmp_path, "linux")
    for client in ("gemini-cli", "codex", "kiro", "cursor", "factory", "kimi"):
        mine = [place.path for place in places if place.client == client]
        assert len(set(mine)) == len(mine), client


def test_misspelled_client_gets_suggestion():
    with pytest.raises(ConfigError) as caught:
        get_client("claudecode")
    assert (caught.value.code, caught.value.hint) == ("E-CLIENT-UNKNOWN", "did you mean 'claude-code'?")

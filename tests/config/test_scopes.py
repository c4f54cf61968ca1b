"""The files of user, project and local scope: found, merged, and each value with where it comes from."""

import json
import os
from pathlib import Path

import pytest

from toolway.config import scopes
from toolway.config.scopes import Provenance, open_trust_store
from toolway.errors import ConfigError
from toolway.hub.hub import Hub

CANARY = "canary-0c77e1"


@pytest.fixture
def place(tmp_path):
    """A home, a project in a repository, and a folder deep in it."""
    home, project = tmp_path / "home", tmp_path / "home" / "work" / "project"
    (project / "src" / "deep").mkdir(parents=True)
    (project / ".git").mkdir()
    return home, project, {"HOME": str(home)}


def write(path, servers=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers or {}, **more}, indent=2))
    return path


def approve(path, environment):
    open_trust_store(environment).trust(path, path.read_bytes())
    return path


def user_file(home):
    return home / ".config/toolway/mcp.json"


def test_scopes_are_merged_and_nearer_scope_wins(place):
    home, project, environment = place
    write(user_file(home), {name: {"command": "user"} for name in ("a", "b", "c")})
    approve(write(project / ".mcp.json", {name: {"command": "project"} for name in ("b", "c", "d")}), environment)
    write(scopes.find_config_paths(environment, project).local, {"c": {"command": "local"}})
    merged = scopes.load_scopes(environment, project / "src" / "deep")
    found = {name: server.command for name, server in merged.servers.items()}
    assert found == {"a": "user", "b": "project", "c": "local", "d": "project"}
    assert [origin.scope for origin in merged.files] == ["user", "project", "local"]
    assert [origin.scope for origin in merged.overridden["c"]] == ["user", "project"]
    assert {problem.severity for problem in merged.issues} == {"note"}


def test_entry_comes_from_one_scope_and_is_never_mixed(place):
    home, project, environment = place
    write(user_file(home), {"a": {"command": "user", "env": {"TOKEN": CANARY}, "timeout": "5s"}})
    approve(write(project / "mcp.json", {"a": {"command": "project"}}), environment)
    server = scopes.load_scopes(environment, project).servers["a"]
    assert (server.command, dict(server.env), server.timeout.total) == ("project", {}, 60.0)


def test_both_project_file_names_are_used(place):
    _, project, environment = place
    approve(write(project / ".mcp.json", {"a": {"command": "dot"}, "b": {"command": "dot"}}), environment)
    approve(write(project / "mcp.json", {"b": {"command": "plain"}}), environment)
    found = {name: server.command for name, server in scopes.load_scopes(environment, project).servers.items()}
    assert found == {"a": "dot", "b": "plain"}


def test_project_root_is_repository_below_home(place):
    home, project, environment = place
    write(home / "mcp.json", {"home": {"command": "x"}})
    write(project.parent / "mcp.json", {"above": {"command": "x"}})
    assert scopes.find_config_paths(environment, project / "src").root == project
    assert scopes.find_config_paths(environment, project / "src").project == ()
    other = home / "other"
    other.mkdir()
    assert scopes.find_config_paths(environment, other).project == ()
    assert scopes.find_config_paths(environment, project.parent / "folder").root == project.parent


def test_user_file_is_always_trusted(place):
    home, _, environment = place
    write(user_file(home), {"a": {"command": "x"}})
    merged = scopes.load_scopes(environment, user_file(home).parent)
    assert list(merged.servers) == ["a"]
    assert merged.untrusted == ()


def test_local_file_is_outside_the_project(place):
    _, project, environment = place
    local = scopes.find_config_paths(environment, project).local
    assert project not in local.parents
    assert local != scopes.find_config_paths(environment, project.parent).local


def test_project_commands_run_in_project_folder(place):
    home, project, environment = place
    write(user_file(home), {"user": {"command": "x"}})
    entries = {
        "here": {"command": "./x"},
        "there": {"command": "x", "cwd": "sub"},
        "far": {"command": "x", "cwd": "/far"},
    }
    approve(write(project / "mcp.json", {**entries, "web": {"url": "https://x.example"}}), environment)
    found = {name: server.cwd for name, server in scopes.load_scopes(environment, project / "src").servers.items()}
    expected = {"here": str(project), "there": str(project / "sub"), "far": "/far", "web": None, "user": None}
    assert found == expected


# -- approval ---------------------------------------------------------------------------------------------------------


@pytest.mark.attack("held-61")
def test_project_file_is_not_used_until_trusted(place):
    home, project, environment = place
    write(user_file(home), {"a": {"command": "user"}})
    file = write(project / ".mcp.json", {"a": {"command": "evil"}, "b": {"command": "evil"}})
    merged = scopes.load_scopes(environment, project)
    assert {name: server.command for name, server in merged.servers.items()} == {"a": "user"}
    assert [waiting.path for waiting in merged.untrusted] == [file]
    (problem,) = merged.issues
    assert (problem.code, problem.severity, problem.file) == ("E-CONFIG-UNTRUSTED", "error", str(file))
    assert "toolway trust" in problem.hint
    assert all(value.origin.scope == "user" for value in merged.values)


@pytest.mark.parametrize("change", [" ", "\n", "evil"])
def test_changed_file_needs_trust_again_until_restored(place, change):
    _, project, environment = place
    file = approve(write(project / "mcp.json", {"a": {"command": "good"}}), environment)
    before = file.read_text()
    file.write_text(before.replace("good", "evil") if change == "evil" else before + change)
    merged = scopes.load_scopes(environment, project)
    assert (merged.servers, [waiting.changed for waiting in merged.untrusted]) == ({}, [True])
    file.write_text(before)
    assert list(scopes.load_scopes(environment, project).servers) == ["a"]


def test_settings_of_untrusted_file_are_not_used(place):
    home, project, environment = place
    write(user_file(home), {"a": {"command": "x"}})
    evil = {"gateway": {"host": "0.0.0.0", "allowedCommands": ["sh"], "origins": ["https://evil.example"]}}
    write(project / "mcp.json", {"b": {"command": "x"}}, toolway=evil)
    gateway = scopes.load_scopes(environment, project).gateway
    assert (gateway.host, gateway.allowed_commands, gateway.origins) == ("127.0.0.1", (), ())


def test_trust_covers_one_file_and_can_be_revoked(place):
    _, project, environment = place
    file = approve(write(project / "mcp.json", {"a": {"command": "x"}}), environment)
    other = write(project / "src" / "mcp.json", {"a": {"command": "x"}})
    assert file.read_bytes() == other.read_bytes()
    assert scopes.load_scopes(environment, project / "src").servers == {}
    approvals = open_trust_store(environment)
    assert approvals.revoke(file)
    assert not approvals.revoke(file)
    assert scopes.load_scopes(environment, project).servers == {}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"x": 1}'])
def test_unreadable_trust_store_trusts_nothing(place, content):
    _, project, environment = place
    file = approve(write(project / "mcp.json", {"a": {"command": "x"}}), environment)
    open_trust_store(environment).file.write_bytes(content)
    assert scopes.load_scopes(environment, project).servers == {}
    approve(file, environment)
    assert list(scopes.load_scopes(environment, project).servers) == ["a"]


def test_project_is_not_used_without_a_trust_store(tmp_path):
    write(tmp_path / "mcp.json", {"a": {"command": "x"}})
    assert scopes.load_scopes({"XDG_CONFIG_HOME": str(tmp_path / "c")}, tmp_path).servers == {}


def test_symlink_is_trusted_for_its_target_content(place):
    _, project, environment = place
    good, evil = write(project / "good", {"a": {"command": "x"}}), write(project / "evil", {"a": {"command": "evil"}})
    (project / "mcp.json").symlink_to(good)
    approve(project / "mcp.json", environment)
    assert list(scopes.load_scopes(environment, project).servers) == ["a"]
    (project / "mcp.json").unlink()
    (project / "mcp.json").symlink_to(evil)
    assert scopes.load_scopes(environment, project).servers == {}


# -- what a command and a hub use -------------------------------------------------------------------------------------


def test_named_file_is_used_alone(place):
    home, project, environment = place
    write(user_file(home), {"a": {"command": "user"}})
    named = write(project / "mcp.json", {"b": {"command": "x"}})
    assert list(scopes.load_config(environment, project, named).servers) == ["b"]
    assert list(scopes.load_config({**environment, "TOOLWAY_CONFIG": str(named)}, home).servers) == ["b"]


def test_only_untrusted_file_is_an_error_with_hint(place):
    _, project, environment = place
    write(project / "mcp.json", {"b": {"command": "x"}})
    with pytest.raises(ConfigError) as caught:
        scopes.load_config(environment, project)
    assert (caught.value.code, caught.value.hint) == ("E-CONFIG-UNTRUSTED", "review it: toolway trust")


def test_missing_config_error_names_searched_paths(place):
    home, project, environment = place
    with pytest.raises(ConfigError) as caught:
        scopes.load_config(environment, project)
    assert caught.value.code == "E-CONFIG-NONE"
    assert str(user_file(home)) in caught.value.detail
    assert str(project / ".mcp.json") in caught.value.detail


def test_unreadable_file_does_not_hide_others(place):
    home, project, environment = place
    user_file(home).parent.mkdir(parents=True)
    user_file(home).write_text('{"mcpServers": {')
    approve(write(project / "mcp.json", {"a": {"command": "x"}}), environment)
    merged = scopes.load_scopes(environment, project)
    assert list(merged.servers) == ["a"]
    assert [problem.code for problem in merged.issues] == ["E-CONFIG-SYNTAX"]
    (project / "mcp.json").unlink()
    with pytest.raises(ConfigError, match="not valid JSON"):
        scopes.load_config(environment, project)


def test_loaded_config_can_reload_and_lists_watched_files(place):
    home, project, environment = place
    write(user_file(home), {"a": {"command": "x"}})
    loaded = scopes.load_config(environment, project)
    assert {str(user_file(home)), str(project / "mcp.json"), str(open_trust_store(environment).file)} <= set(
        loaded.watched_files
    )
    approve(write(project / "mcp.json", {"b": {"command": "x"}}), environment)
    assert loaded.reload is not None
    assert list(loaded.reload().servers) == ["a", "b"]


@pytest.mark.anyio
async def test_hub_without_argument_loads_all_scopes(place, monkeypatch):
    home, project, _ = place
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)
    write(user_file(home), {"a": {"command": "x", "enabled": False}})
    write(project / "mcp.json", {"b": {"command": "x", "enabled": False}})
    hub = Hub()
    assert list(hub.status()) == ["a"]
    assert [problem.code for problem in hub.config_issues] == ["E-CONFIG-UNTRUSTED"]
    approve(project / "mcp.json", os.environ)
    assert list(Hub().status()) == ["a", "b"]


# -- origins ----------------------------------------------------------------------------------------------------------

USER = """{
  // mine
  "mcpServers": {
    "gh": {
      "command": "npx",
      "args": ["-y", "pkg", "--api-key", "CANARY"],
      "env": {
        "TOKEN": "CANARY",
        "REF": "${keyring:gh.REF}",
        "LEVEL": "debug"
      },
      "extra": {"deep": {"apiKey": "CANARY"}}
    },
    "web": {"url": "https://u:CANARY@x.example/mcp?token=CANARY",
            "headers": {"Authorization": "Bearer CANARY", "X-Env": "${env:X}"}},
    "text": "npx -y other"
  },
  "toolway": {"timeout": "5s", "gateway": {"port": 1234},
    "toolsets": {"one": {"tools": ["gh.*"]}}}
}
"""


def test_every_value_has_file_and_line_without_secrets(place):
    home, project, environment = place
    user_file(home).parent.mkdir(parents=True)
    user_file(home).write_text(USER.replace("CANARY", CANARY))
    merged = scopes.load_scopes(environment, project)
    shown = {".".join(value.path): (json.loads(value.masked_json), value.origin.line) for value in merged.values}
    assert shown == {
        "gh.command": ("npx", 5),
        "gh.args": (["-y", "pkg", "--api-key", "***"], 6),
        "gh.env.TOKEN": ("***", 8),
        "gh.env.REF": ("${keyring:gh.REF}", 9),
        "gh.env.LEVEL": ("debug", 10),
        "gh.extra.deep.apiKey": ("***", 12),
        "web.url": ("https://u:***@x.example/mcp?token=***", 14),
        "web.headers.Authorization": ("***", 15),
        "web.headers.X-Env": ("${env:X}", 15),
        "text": ("npx -y other", 16),
        "toolway.timeout": ("5s", 18),
        "toolway.gateway.port": (1234, 18),
        "toolway.toolsets.one.tools": (["gh.*"], 19),
    }
    assert merged.origins["gh", "env", "TOKEN"] == Provenance("user", str(user_file(home)), 8)
    assert CANARY not in repr(merged)


def test_settings_of_several_files_are_merged_by_key(place):
    home, project, environment = place
    toolsets = {"one": {"tools": ["a.*"]}, "two": {"tools": ["b.*"]}}
    write(user_file(home), toolway={"gateway": {"port": 1, "host": "127.0.0.2"}, "toolsets": toolsets})
    changed = {"gateway": {"port": 2}, "toolsets": {"two": {"tools": ["c.*"]}, "three": {"tools": []}}}
    file = approve(write(project / "mcp.json", toolway=changed), environment)
    merged = scopes.load_scopes(environment, project)
    assert (merged.gateway.host, merged.gateway.port) == ("127.0.0.2", 2)
    assert {name: toolset.tools for name, toolset in merged.gateway.toolsets.items()} == {
        "one": ("a.*",),
        "two": ("c.*",),
        "three": (),
    }
    origins = {".".join(path): Path(origin.file) for path, origin in merged.origins.items()}
    assert origins == {
        "toolway.gateway.host": user_file(home),
        "toolway.gateway.port": file,
        "toolway.toolsets.one.tools": user_file(home),
        "toolway.toolsets.two.tools": file,
        "toolway.toolsets.three.tools": file,
    }


def test_normalized_name_has_its_origin(place):
    home, project, environment = place
    write(user_file(home), {"My Server": {"command": "x"}})
    merged = scopes.load_scopes(environment, project)
    assert merged.origins["my-server", "command"].line == 4

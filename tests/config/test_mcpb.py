import json
import os
import stat
import zipfile

import pytest

from toolway.config import mcpb
from toolway.config.server_entry import parse_entry as server_of
from toolway.errors import ConfigError

MANIFEST = {
    "manifest_version": "0.3",
    "name": "My Files",
    "version": "1.2.0",
    "server": {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {
            "command": "node",
            "args": ["${__dirname}/server/index.js", "${user_config.folders}", "--max=${user_config.max}"],
            "env": {"TOKEN": "${user_config.token}", "LOG": "${HOME}${/}log", "NOTE": "${user_config.note}"},
            "platform_overrides": {"darwin": {"command": "node-mac", "env": {"MAC": "1"}}},
        },
    },
    "user_config": {
        "folders": {"type": "directory", "title": "Folders", "required": True, "multiple": True},
        "max": {"type": "number", "title": "Most", "default": 10},
        "token": {"type": "string", "title": "Token", "sensitive": True, "required": True},
        "note": {"type": "string", "title": "Note"},
    },
}


def bundle(tmp_path, manifest=MANIFEST, files=None, name="b.mcpb"):
    path = tmp_path / name
    with zipfile.ZipFile(path, "w") as archive:
        if manifest is not None:
            archive.writestr("manifest.json", json.dumps(manifest))
        for inner, data in (files or {"server/index.js": b"//"}).items():
            archive.writestr(inner, data)
    return path


def test_bundle_manifest_is_parsed(tmp_path):
    found = mcpb.read_bundle(bundle(tmp_path))
    assert (found.name, found.version, len(found.sha256)) == ("my-files", "1.2.0", 64)
    asks = {ask.name: ask for ask in found.inputs}
    assert asks["folders"].allows_many and asks["folders"].needs_value
    assert asks["token"].secret_name == "my-files.token"
    assert asks["max"].default == 10


def test_bundle_entry_has_folder_and_secret_references(tmp_path):
    folder = tmp_path / "at"
    entry = mcpb.build_bundle_entry(mcpb.read_bundle(bundle(tmp_path)), folder, {"folders": ["/a", "/b c"]})
    assert entry == {
        "command": "node",
        "args": [f"{folder}/server/index.js", "/a", "/b c", "--max=10"],
        "env": {"TOKEN": "${keyring:my-files.token}", "LOG": "${HOME}/log"},
        "cwd": str(folder),
    }
    assert server_of(entry, {"HOME": "/h"}).env["LOG"] == "/h/log"


def test_platform_override_is_used(tmp_path):
    entry = mcpb.build_bundle_entry(mcpb.read_bundle(bundle(tmp_path)), tmp_path, {"folders": ["/a"]}, "darwin")
    assert (entry["command"], entry["env"]["MAC"]) == ("node-mac", "1")


def test_missing_required_input_raises(tmp_path):
    with pytest.raises(ConfigError, match="needs folders"):
        mcpb.build_bundle_entry(mcpb.read_bundle(bundle(tmp_path)), tmp_path)


@pytest.mark.parametrize(
    ("kind", "command"),
    [("uv", ["uv", "run", "--directory", "{}", "s.py"]), ("python", ["python3", "{}/s.py"]), ("binary", ["{}/s.py"])],
)
def test_manifest_without_command_uses_runner_of_its_type(kind, command, tmp_path):
    manifest = {"name": "x", "server": {"type": kind, "entry_point": "s.py"}}
    entry = mcpb.build_bundle_entry(mcpb.read_bundle(bundle(tmp_path, manifest)), tmp_path)
    assert [entry["command"], *entry["args"]] == [word.format(tmp_path) for word in command]


def test_bundle_is_unpacked_with_executable_programs(tmp_path):
    path = bundle(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("bin/run")
        info.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(info, b"#!/bin/sh\n")
    mcpb.unpack_bundle(mcpb.read_bundle(path), tmp_path / "at")
    assert (tmp_path / "at" / "server" / "index.js").read_bytes() == b"//"
    assert os.access(tmp_path / "at" / "bin" / "run", os.X_OK)
    mcpb.unpack_bundle(mcpb.read_bundle(path), tmp_path / "at")  # again, over itself
    assert sorted(each.name for each in tmp_path.iterdir()) == ["at", "b.mcpb"]


@pytest.mark.attack("held-65")
@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "..\\out", "C:\\out"])
def test_bundle_with_path_traversal_is_rejected(name, tmp_path):
    with pytest.raises(ConfigError, match="outside its folder") as caught:
        mcpb.read_bundle(bundle(tmp_path, files={name: b"x"}))
    assert caught.value.code == "E-CONFIG-BUNDLE"


@pytest.mark.attack("held-65")
def test_bundle_with_symlink_is_rejected(tmp_path):
    path = bundle(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(ConfigError, match="outside its folder"):
        mcpb.read_bundle(path)


@pytest.mark.attack("held-65")
def test_oversized_bundle_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(mcpb, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(ConfigError, match="more than 1000 bytes"):
        mcpb.read_bundle(bundle(tmp_path, files={"zeros": b"0" * 2000}))


@pytest.mark.parametrize("manifest", [None, {}, [], {"name": "x"}, {"name": "x", "server": "y"}])
def test_invalid_manifest_is_rejected(manifest, tmp_path):
    with pytest.raises(ConfigError) as caught:
        mcpb.read_bundle(bundle(tmp_path, manifest))
    assert caught.value.code == "E-CONFIG-BUNDLE"


def test_file_that_is_not_a_zip_is_rejected(tmp_path):
    (tmp_path / "x.mcpb").write_text("hello")
    with pytest.raises(ConfigError, match="is not a usable bundle"):
        mcpb.read_bundle(tmp_path / "x.mcpb")


@pytest.mark.attack("held-65")
def test_manifest_cannot_reference_other_secrets(tmp_path):
    stolen = "${keyring:github.token}${command:id}${file:/etc/passwd}"
    config = {"command": "x", "args": [stolen], "env": {"A": stolen}}
    found = mcpb.read_bundle(bundle(tmp_path, {"name": "x", "server": {"type": "node", "mcp_config": config}}))
    server = server_of(mcpb.build_bundle_entry(found, tmp_path), {})
    assert (server.args, server.env) == ((stolen,), {"A": stolen})
    assert type(server.env["A"]) is str

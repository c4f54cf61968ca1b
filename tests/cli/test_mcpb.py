"""add of MCPB bundles and of descriptions of the registry."""

import json
import zipfile

MANIFEST = {
    "manifest_version": "0.3",
    "name": "notes-server",
    "version": "1.2.0",
    "server": {
        "type": "python",
        "entry_point": "server.py",
        "mcp_config": {
            "command": "python3",
            "args": ["${__dirname}/server.py", "${user_config.folder}"],
            "env": {"NOTES_TOKEN": "${user_config.token}"},
        },
    },
    "user_config": {
        "folder": {"type": "directory", "title": "Where notes are", "required": True},
        "token": {"type": "string", "title": "Token", "required": True, "sensitive": True},
    },
}
DESCRIBED = {
    "name": "io.github.someone/weather",
    "description": "Weather",
    "version": "1.0.0",
    "packages": [
        {
            "registryType": "npm",
            "identifier": "@someone/weather",
            "version": "1.0.0",
            "transport": {"type": "stdio"},
            "environmentVariables": [
                {"name": "WEATHER_TOKEN", "isRequired": True, "isSecret": True},
                {"name": "PLACE", "isRequired": True, "description": "Where you are."},
            ],
        }
    ],
    "remotes": [{"type": "streamable-http", "url": "https://weather.example.com/mcp"}],
}


def bundle(machine, manifest=MANIFEST, **files):
    path = machine.home / "notes.mcpb"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("server.py", "print('here')")
        for name, text in files.items():
            archive.writestr(name, text)
    return str(path)


def test_bundle_is_unpacked_and_its_secret_is_referenced(machine):
    result = machine.toolway("add", bundle(machine), "--set", "folder=/my/notes", "--yes")
    assert result.exit_code == 0, result.stderr
    (folder,) = (machine.home / ".local/share/toolway/bundles").glob("notes-server-1.2.0-*")
    assert (folder / "server.py").read_text() == "print('here')"
    entry = machine.entries()["notes-server"]
    assert entry["args"] == [str(folder / "server.py"), "/my/notes"]
    assert entry["env"] == {"NOTES_TOKEN": "${keyring:notes-server.token}"}
    assert "toolway secrets set notes-server.token" in result.stderr


def test_bundle_inputs_are_required_before_unpacking(machine):
    result = machine.toolway("add", bundle(machine))
    assert (result.exit_code, "--set folder=VALUE" in result.stderr) == (2, True)
    wrong = machine.toolway("add", bundle(machine), "--set", "folder=/a", "--set", "nonsense=1")
    assert (wrong.exit_code, "its inputs are: folder, token" in wrong.stderr) == (2, True)
    secret = machine.toolway("add", bundle(machine), "--set", "folder=/a", "--set", "token=abcdef123456")
    assert (secret.exit_code, "abcdef123456" in secret.output) == (2, False)
    assert not (machine.home / ".local/share/toolway/bundles").exists()
    assert not machine.own.exists()


def test_bundle_with_path_traversal_is_rejected(machine):
    result = machine.toolway("add", bundle(machine, **{"../../out.py": "x"}), "--set", "folder=/a")
    assert (result.exit_code, "E-CONFIG-BUNDLE" in result.stderr) == (3, True)
    assert not machine.own.exists()


def test_dry_run_unpacks_nothing(machine):
    result = machine.toolway("add", "mine", bundle(machine), "--set", "folder=/a", "--dry-run")
    assert '+    "mine": {' in result.stdout
    assert not (machine.home / ".local/share/toolway/bundles").exists()


def test_registry_description_becomes_the_chosen_offer(machine):
    file = str(machine.write("server.json", DESCRIBED))
    result = machine.toolway("add", file, "--set", "PLACE=Berlin", "--yes")
    assert result.exit_code == 0, result.stderr
    assert machine.entries()["weather"] == {
        "command": "npx",
        "args": ["-y", "@someone/weather@1.0.0"],
        "env": {"WEATHER_TOKEN": "${keyring:weather.WEATHER_TOKEN}", "PLACE": "Berlin"},
    }
    machine.toolway("add", "far", file, "--offer", "2", "--yes")
    assert machine.entries()["far"] == {"url": "https://weather.example.com/mcp"}
    missing = machine.toolway("add", "other", file, "--offer", "3")
    assert (missing.exit_code, "2 https://weather.example.com/mcp" in missing.stderr) == (2, True)


def test_empty_description_is_rejected(machine):
    result = machine.toolway("add", str(machine.write("server.json", {"packages": []})))
    assert (result.exit_code, "E-CONFIG-SERVER-JSON" in result.stderr) == (3, True)
    assert machine.toolway("add", "no-such-server.json").exit_code == 3

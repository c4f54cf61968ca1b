import json

import pytest

from toolway.config.server_entry import parse_entry as server_of
from toolway.config.server_json import parse_server_json, read_server_document
from toolway.errors import ConfigError

DOCUMENT = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "io.github.someone/Brave_Search",
    "description": "Search the web",
    "version": "1.0.2",
    "packages": [
        {
            "registryType": "npm",
            "identifier": "@someone/brave",
            "version": "1.0.2",
            "transport": {"type": "stdio"},
            "environmentVariables": [
                {"name": "BRAVE_API_KEY", "isRequired": True, "isSecret": True, "description": "the key"},
                {"name": "REGION", "default": "eu", "choices": ["eu", "us"]},
                {"name": "TEAM", "isRequired": True},
                {"name": "OPTIONAL"},
            ],
            "packageArguments": [
                {"type": "positional", "value": "serve"},
                {"type": "named", "name": "--root", "valueHint": "root", "isRequired": True},
                {"type": "named", "name": "--verbose"},
                {"type": "named", "name": "--url", "value": "http://{host}:1", "variables": {"host": {"default": "h"}}},
                {"type": "positional", "valueHint": "extra"},
            ],
        },
        {"registryType": "pypi", "identifier": "brave-mcp", "version": "2.0", "transport": {"type": "stdio"}},
        {
            "registryType": "oci",
            "identifier": "ghcr.io/someone/brave:1.0.2",
            "version": "1.0.2",
            "transport": {"type": "stdio"},
            "runtimeArguments": [{"type": "named", "name": "--network", "value": "none"}],
            "environmentVariables": [{"name": "BRAVE_API_KEY", "isRequired": True, "isSecret": True}],
        },
        {"registryType": "nuget", "identifier": "Brave", "version": "3", "transport": {"type": "stdio"}},
        {
            "registryType": "mcpb",
            "identifier": "https://x.example/b.mcpb",
            "fileSha256": "ab",
            "transport": {"type": "stdio"},
        },
        {
            "registryType": "npm",
            "identifier": "@someone/http",
            "transport": {"type": "streamable-http", "url": "http://x"},
        },
    ],
    "remotes": [
        {
            "type": "streamable-http",
            "url": "https://{tenant}.example/mcp",
            "variables": {"tenant": {"isRequired": True}},
            "headers": [
                {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isSecret": True}}},
                {"name": "X-Key", "isRequired": True, "isSecret": True},
            ],
        },
        {"type": "sse", "url": "https://old.example/sse"},
    ],
}


def offers():
    return {offer.label.split()[0]: offer for offer in read_server_document(DOCUMENT).options}


def test_server_document_gets_a_valid_short_name():
    found = parse_server_json(json.dumps(DOCUMENT))
    assert (found.name, found.short_name, found.version) == ("io.github.someone/Brave_Search", "brave-search", "1.0.2")
    assert read_server_document({"server": DOCUMENT, "_meta": {}}) == found  # as the registry answers


def test_npm_package_becomes_a_pinned_command():
    assert offers()["npm"].entry == {
        "command": "npx",
        "args": ["-y", "@someone/brave@1.0.2", "serve", "--root", "${ROOT}", "--verbose", "--url", "http://h:1"],
        "env": {"BRAVE_API_KEY": "${keyring:brave-search.BRAVE_API_KEY}", "REGION": "eu", "TEAM": "${TEAM}"},
    }


def test_inputs_are_described():
    inputs = {each.name: each for each in offers()["npm"].inputs}
    assert inputs["BRAVE_API_KEY"].needs_value and inputs["BRAVE_API_KEY"].secret_name == "brave-search.BRAVE_API_KEY"
    assert inputs["REGION"].choices == ("eu", "us") and not inputs["REGION"].needs_value
    assert not inputs["OPTIONAL"].required
    assert inputs["root"].target == "args"


@pytest.mark.parametrize(
    ("registry", "entry"),
    [
        ("pypi", {"command": "uvx", "args": ["brave-mcp@2.0"]}),
        ("nuget", {"command": "dnx", "args": ["--yes", "Brave@3"]}),
        (
            "oci",
            {
                "command": "docker",
                "args": [
                    "run",
                    "-i",
                    "--rm",
                    "-e",
                    "BRAVE_API_KEY",
                    "--network",
                    "none",
                    "ghcr.io/someone/brave:1.0.2",
                ],
                "env": {"BRAVE_API_KEY": "${keyring:brave-search.BRAVE_API_KEY}"},
            },
        ),
    ],
)
def test_each_registry_has_its_runner(registry, entry):
    assert offers()[registry].entry == entry


def test_bundle_option_has_url_and_hash():
    offer = offers()["mcpb"]
    assert (offer.entry, offer.bundle, offer.sha256) == (None, "https://x.example/b.mcpb", "ab")


def test_remote_becomes_url_with_headers():
    assert offers()["https://{tenant}.example/mcp"].entry == {
        "url": "https://${TENANT}.example/mcp",
        "headers": {
            "Authorization": "Bearer ${keyring:brave-search.token}",
            "X-Key": "${keyring:brave-search.X-Key}",
        },
    }
    assert offers()["https://old.example/sse"].entry == {"url": "https://old.example/sse", "type": "sse"}


def test_every_offered_entry_is_valid():
    for offer in read_server_document(DOCUMENT).options:
        if offer.entry is not None:
            server_of(offer.entry, {"TENANT": "t", "TEAM": "x", "ROOT": "/"})


def test_document_cannot_reference_other_secrets():
    stolen = "${keyring:github.token} ${command:id} ${file:/etc/passwd} ${HOME}"
    document = {
        "name": "x/y",
        "packages": [
            {
                "registryType": "npm",
                "identifier": f"p{stolen}",
                "transport": {"type": "stdio"},
                "environmentVariables": [{"name": "A", "value": stolen}, {"name": "B", "default": stolen}],
                "packageArguments": [{"type": "positional", "value": stolen}],
            }
        ],
        "remotes": [
            {"type": "streamable-http", "url": "https://x.example", "headers": [{"name": "H", "value": stolen}]}
        ],
    }
    package, remote = (server_of(offer.entry or {}, {"HOME": "/h"}) for offer in read_server_document(document).options)
    assert (package.args, package.env) == (("-y", f"p{stolen}", stolen), {"A": stolen, "B": stolen})
    assert remote.headers == {"H": stolen}
    assert type(package.env["A"]) is str and type(remote.headers["H"]) is str  # no reference is in them


@pytest.mark.parametrize("document", [[], {}, {"name": "x"}, {"name": "x", "packages": [{"registryType": "cargo"}]}])
def test_document_without_options_is_rejected_with_hint(document):
    with pytest.raises(ConfigError) as caught:
        read_server_document(document)
    assert caught.value.code == "E-CONFIG-SERVER-JSON"
    assert "toolway add" in caught.value.hint

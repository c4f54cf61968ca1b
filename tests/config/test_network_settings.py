"""What files say about addresses, and for whom it holds."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolway.config import scopes
from toolway.config.loader import parse_config
from toolway.config.scopes import open_trust_store
from toolway.config.settings import find_private_hosts
from toolway.network import AddressDenied, resolve_host
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy, is_private_host


def text(allow, **servers):
    return json.dumps({"mcpServers": servers, "toolway": {"addresses": {"allow": allow}}})


URL = {"url": "https://a.example/mcp"}


def test_allowed_addresses_apply_to_servers_with_url():
    loaded = parse_config(
        text(["a.example", "10.0.0.0/8"], a=URL, api={"openapi": {"url": "https://b.example/"}}, c="cat")
    )
    assert loaded.network_policy == NetworkPolicy(("a.example", "10.0.0.0/8"))
    assert loaded.servers["a"].network_policy == loaded.network_policy == loaded.servers["api"].network_policy
    assert loaded.servers["c"].network_policy == PUBLIC_ONLY and not loaded.issues


def test_variables_are_expanded_in_allowed_addresses():
    assert parse_config(text(["${HOST}"], a=URL), variables={"HOST": "x.example"}).network_policy.allow == (
        "x.example",
    )


@pytest.mark.parametrize(
    "block", ["all", [], {"allow": "a.example"}, {"allow": ["http://x"]}, {"allow": [1.5]}, {"alow": ["a.example"]}]
)
def test_invalid_address_block_allows_nothing(block):
    loaded = parse_config(json.dumps({"mcpServers": {"a": URL}, "toolway": {"addresses": block}}), "f.json")
    [problem] = loaded.issues
    assert problem.severity == "error" and problem.file == "f.json" and problem.line == 1 and problem.server == ""
    assert loaded.servers["a"].network_policy == PUBLIC_ONLY == loaded.network_policy


def test_changed_addresses_change_url_servers():
    """Otherwise a reload of a gateway keeps the old connections."""
    one, other = (parse_config(text(allow, a=URL, c="cat")).servers for allow in (["x"], ["y"]))
    assert one["a"] != other["a"] and one["c"] == other["c"]


def test_scopes_inherit_allowed_addresses_downwards_only(tmp_path):
    project = tmp_path / "project"
    environment = {"HOME": str(tmp_path / "home")}
    places = scopes.find_config_paths(environment, project)
    files = {
        places.user: text(["of-user"], mine=URL),
        project / "mcp.json": text(["of-project"], theirs=URL),
        places.local: text(["of-me-there"], local=URL),
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    open_trust_store(environment).trust(project / "mcp.json", (project / "mcp.json").read_bytes())
    loaded = scopes.load_config(environment, project)
    assert {name: set(server.network_policy.allow) for name, server in loaded.servers.items()} == {
        "mine": {"of-user"},
        "theirs": {"of-user", "of-project"},
        "local": {"of-user", "of-project", "of-me-there"},
    }
    assert loaded.network_policy.allow == ("of-user", "of-project", "of-me-there")


def test_untrusted_project_allows_no_addresses(tmp_path):
    environment = {"HOME": str(tmp_path / "home")}
    (tmp_path / "mcp.json").write_text(text(["of-project"], theirs=URL))
    assert scopes.load_scopes(environment, tmp_path).network_policy == PUBLIC_ONLY


@pytest.mark.parametrize(
    "host", ["build", "mcp-server", "jira.local", "a.b.internal", "nas.lan", "x.svc.cluster.local"]
)
def test_private_host_name_gets_a_warning(host):
    [problem] = find_private_hosts({"a": {"url": f"http://{host}:8000/mcp"}}, PUBLIC_ONLY)
    assert problem.severity == "warning" and problem.code == "E-HTTP-ADDRESS"
    assert json.loads("{" + problem.hint.partition(": ")[2] + "}")["toolway"]["addresses"]["allow"] == [host]
    assert find_private_hosts({"a": {"url": f"http://{host}/"}}, NetworkPolicy((host,))) == []


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "10.0.0.1", "[::1]", "docs.example", "local.example.com", ""]
)
def test_public_or_local_host_gets_no_warning(host):
    assert not is_private_host(host.strip("[]"))
    assert find_private_hosts({"a": {"url": f"http://{host}/"}, "b": {"command": "x"}}, PUBLIC_ONLY) == []


def test_loader_does_not_import_asyncio():
    """It comes with asyncio, for which no one should wait who only asks what there is."""
    program = "import sys, toolway.config.loader; print({'asyncio', 'socket'} & sys.modules.keys() or 'none')"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "none\n"


def test_howto_example_works():
    page = (Path(__file__).resolve().parents[2] / "docs/howto/addresses.md").read_text()
    [shown] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    loaded = parse_config(shown)
    assert not loaded.issues and loaded.servers.keys() == {"jira", "build"}
    assert loaded.network_policy.allow == ("jira.corp.example", "*.lab.example", "build", "10.20.0.0/16")
    with pytest.raises(AddressDenied) as caught:
        asyncio.run(resolve_host("jira.corp.example", 443, NetworkPolicy(lookup=lambda _: ["10.1.2.3"])))
    assert f"✗ jira: {caught.value.reason}" in page

"""What files say about addresses, and for whom it holds."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolway.addresses import AddressRefused, resolve
from toolway.addresses.policy import PUBLIC, Addresses, looks_inside
from toolway.config import scopes
from toolway.config.addresses import names_inside
from toolway.config.approvals import open_approvals
from toolway.config.formats import parse


def text(allow, **servers):
    return json.dumps({"mcpServers": servers, "toolway": {"addresses": {"allow": allow}}})


URL = {"url": "https://a.example/mcp"}


def test_what_a_file_allows_holds_for_its_servers_that_have_an_address():
    loaded = parse(text(["a.example", "10.0.0.0/8"], a=URL, api={"openapi": {"url": "https://b.example/"}}, c="cat"))
    assert loaded.addresses == Addresses(("a.example", "10.0.0.0/8"))
    assert loaded.servers["a"].addresses == loaded.addresses == loaded.servers["api"].addresses
    assert loaded.servers["c"].addresses == PUBLIC and not loaded.problems


def test_variables_are_filled_in():
    assert parse(text(["${HOST}"], a=URL), variables={"HOST": "x.example"}).addresses.allow == ("x.example",)


@pytest.mark.parametrize(
    "block", ["all", [], {"allow": "a.example"}, {"allow": ["http://x"]}, {"allow": [1.5]}, {"alow": ["a.example"]}]
)
def test_what_cannot_be_read_is_said_and_allows_nothing_and_hides_no_server(block):
    loaded = parse(json.dumps({"mcpServers": {"a": URL}, "toolway": {"addresses": block}}), "f.json")
    [problem] = loaded.problems
    assert problem.severity == "error" and problem.file == "f.json" and problem.line == 1 and problem.server == ""
    assert loaded.servers["a"].addresses == PUBLIC == loaded.addresses


def test_a_change_of_it_is_a_change_of_the_servers():
    """So that a reload of a gateway connects anew."""
    one, other = (parse(text(allow, a=URL, c="cat")).servers for allow in (["x"], ["y"]))
    assert one["a"] != other["a"] and one["c"] == other["c"]


def test_a_project_uses_what_the_user_allows_and_allows_the_user_nothing(tmp_path):
    project = tmp_path / "project"
    environment = {"HOME": str(tmp_path / "home")}
    places = scopes.find(environment, project)
    files = {
        places.user: text(["of-user"], mine=URL),
        project / "mcp.json": text(["of-project"], theirs=URL),
        places.local: text(["of-me-there"], local=URL),
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    open_approvals(environment).approve(project / "mcp.json", (project / "mcp.json").read_bytes())
    loaded = scopes.loaded(environment, project)
    assert {name: set(server.addresses.allow) for name, server in loaded.servers.items()} == {
        "mine": {"of-user"},
        "theirs": {"of-user", "of-project"},
        "local": {"of-user", "of-project", "of-me-there"},
    }
    assert loaded.addresses.allow == ("of-user", "of-project", "of-me-there")


def test_a_project_that_was_not_approved_allows_nothing(tmp_path):
    environment = {"HOME": str(tmp_path / "home")}
    (tmp_path / "mcp.json").write_text(text(["of-project"], theirs=URL))
    assert scopes.load(environment, tmp_path).addresses == PUBLIC


@pytest.mark.parametrize(
    "host", ["build", "mcp-server", "jira.local", "a.b.internal", "nas.lan", "x.svc.cluster.local"]
)
def test_names_that_nobody_has_in_public_are_pointed_out(host):
    [problem] = names_inside({"a": {"url": f"http://{host}:8000/mcp"}}, PUBLIC)
    assert problem.severity == "warning" and problem.code == "E-HTTP-ADDRESS"
    assert json.loads("{" + problem.fix.partition(": ")[2] + "}")["toolway"]["addresses"]["allow"] == [host]
    assert names_inside({"a": {"url": f"http://{host}/"}}, Addresses((host,))) == []


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "10.0.0.1", "[::1]", "docs.example", "local.example.com", ""]
)
def test_other_hosts_are_not(host):
    assert not looks_inside(host.strip("[]"))
    assert names_inside({"a": {"url": f"http://{host}/"}, "b": {"command": "x"}}, PUBLIC) == []


def test_a_file_is_read_without_what_resolves_names():
    """It comes with asyncio, for which nobody should wait who only asks what there is."""
    program = "import sys, toolway.config.formats; print({'asyncio', 'socket'} & sys.modules.keys() or 'none')"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "none\n"


def test_the_page_for_people_shows_what_works():
    page = (Path(__file__).resolve().parents[2] / "docs/howto/addresses.md").read_text()
    [shown] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    loaded = parse(shown)
    assert not loaded.problems and loaded.servers.keys() == {"jira", "build"}
    assert loaded.addresses.allow == ("jira.corp.example", "*.lab.example", "build", "10.20.0.0/16")
    with pytest.raises(AddressRefused) as caught:
        asyncio.run(resolve("jira.corp.example", 443, Addresses(lookup=lambda _: ["10.1.2.3"])))
    assert f"✗ jira: {caught.value.reason}" in page

"""Which gateway and which config file a command uses, and that nothing else stands in for a gateway."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.faults.matrix.http.tls_server import certificate
from toolway.gateway.state_dir import RunningGateway, StateDir

URL = "http://127.0.0.1:9"
COMMANDS_OF_SERVERS = (
    ("ls",),
    ("show", "own"),
    ("tools",),
    ("tools", "own.add"),
    ("tools", "cost"),
    ("call", "own.add"),
    ("search", "add"),
    ("prompts",),
    ("resources",),
    ("ui", "--no-browser"),
    ("calls",),
    ("doctor", "--tools"),
    ("logs",),
)


@pytest.fixture
def own(machine):
    """The user's own file, with a server that leaves a mark when it is started."""
    machine.mark = machine.home / "started"
    entry = {"command": "touch", "args": [str(machine.mark)]}
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"own": entry}})
    return machine


def register(machine, config="", url=URL):
    """A gateway that is registered as running: its process is this one, and nothing listens at its address."""
    StateDir(machine.home / ".local/state/toolway/gateway").write_running(RunningGateway(url, os.getpid(), str(config)))


@pytest.mark.user_trial("14")
@pytest.mark.parametrize("command", COMMANDS_OF_SERVERS, ids=" ".join)
def test_unresponsive_registered_gateway_is_reported(own, command):
    register(own, own.own)
    result = own.toolway(*command, "-q")
    assert result.exit_code == 4
    assert f"the gateway at {URL} does not respond" in result.stderr
    assert f"process {os.getpid()} is registered" in result.stderr and "--no-gateway" in result.stderr
    assert not own.mark.exists()


@pytest.mark.user_trial("14")
@pytest.mark.parametrize("command", COMMANDS_OF_SERVERS, ids=" ".join)
def test_state_folder_without_gateway_is_reported(own, command, monkeypatch):
    monkeypatch.setenv("TOOLWAY_STATE", str(own.home / "node"))
    result = own.toolway(*command, "-q")
    assert result.exit_code == 4
    assert "E-GATEWAY" in result.stderr and str(own.home / "node") in result.stderr
    assert not own.mark.exists()


@pytest.mark.user_trial("14")
def test_no_gateway_option_uses_the_file(own, monkeypatch):
    register(own, own.own)
    monkeypatch.setenv("TOOLWAY_STATE", str(own.home / "node"))
    own.toolway("ls", "--no-gateway", "-q")
    assert own.mark.exists()


@pytest.mark.slow
@pytest.mark.user_trial("14")
def test_untrusted_certificate_is_reported_with_fix(own, monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    pem = certificate(own.home / "gateway.pem")
    fake = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
    file = own.write("gateway.json", {"mcpServers": {"fake": fake}})
    serve = ["serve", "-c", str(file), "--port", "0", "--cert", str(pem), "--key", str(pem), "--json", "-q"]
    process = subprocess.Popen(
        [sys.executable, "-m", "toolway.cli", *serve, "--drain-delay", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as lines:
        try:
            url = json.loads("".join(iter(lines.readline, "}\n")) + "}")["url"].removesuffix("/mcp")
            for command in COMMANDS_OF_SERVERS:
                result = own.toolway(*command, "-q")
                assert result.exit_code == 4, command
                assert "E-HTTP-TLS" in result.stderr, (command, result.stderr)
                assert "--ca FILE, or SSL_CERT_FILE=FILE" in result.stderr
            named = own.toolway("call", "fake.add", "a=1", "b=2", "-g", url, "-q")
            assert "E-HTTP-TLS" in named.stderr and named.exit_code == 4
            for words in (["--ca", str(pem)], ["--ca", str(pem), "-g", url]):
                result = own.toolway("call", "fake.add", "a=1", "b=2", "-q", *words)
                assert (result.stdout, result.stderr) == ("3\n", "")
                assert "fake.add" in own.toolway("tools", *words).stdout
            missing = own.toolway("ls", "--ca", str(own.home / "no.pem"))
            assert "check the file of --ca" in missing.stderr and "E-TLS-FILE" in missing.stderr
            monkeypatch.setenv("SSL_CERT_FILE", str(pem))
            assert own.toolway("call", "fake.add", "a=1", "b=2", "-q").stdout == "3\n"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    assert not own.mark.exists()


# -- which file --------------------------------------------------------------------------------------------------------


@pytest.fixture
def team(own):
    """A gateway that was started with its own file is registered."""
    entry = {"command": "touch", "args": [str(own.mark)]}
    file = own.write("team.json", {"mcpServers": {"shared": entry}, "toolway": {"policy": "team.cedar"}})
    own.write("team.cedar", "permit (principal, action, resource);\n")
    register(own, file)
    own.team = file
    return own


def used_file(machine, *words):
    """The config file that `config validate` reads."""
    return json.loads(machine.toolway("config", "validate", "--json", *words).stdout)["file"]


@pytest.mark.user_trial("15")
def test_every_command_uses_config_of_running_gateway(team):
    named = f"using {team.team}, the file of the gateway at {URL}"
    validated = team.toolway("config", "validate")
    assert "team.json: 1 server can be used" in validated.stdout
    assert validated.stderr.count(named) == 1
    for words, shown in (
        (["config"], "shared.command"),
        (["config", "path"], str(team.team)),
        (["policy", "check"], ""),  # it asks the gateway for its tools
        (["doctor"], "shared"),
    ):
        result = team.toolway(*words)
        assert shown in result.stdout, (words, result.output)
        assert result.stderr.count(named) == 1, words
    assert named not in team.toolway("config", "validate", "-q").stderr
    team.toolway("add", "more", "--", "true")
    assert json.loads(team.team.read_text())["mcpServers"].keys() == {"shared", "more"}
    team.toolway("rm", "more")
    assert json.loads(team.team.read_text())["mcpServers"].keys() == {"shared"}


@pytest.mark.user_trial("15")
def test_named_config_wins_and_default_files_come_last(team, monkeypatch):
    other = team.write("other.json", {"mcpServers": {}})
    assert used_file(team) == str(team.team)
    assert used_file(team, "-c", str(other)) == str(other)
    monkeypatch.setenv("TOOLWAY_CONFIG", str(other))
    assert used_file(team) == str(other)
    monkeypatch.delenv("TOOLWAY_CONFIG")
    register(team, team.own)  # a gateway that serves the files that are found without an option
    result = team.toolway("config", "validate", "--json")
    assert (json.loads(result.stdout)["file"], result.stderr) == (str(team.own), "")
    register(team)  # a node that serves the configuration of its cluster
    assert used_file(team) == str(team.own)

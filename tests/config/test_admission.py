"""What may be started through `/admin`: only what the operator listed, and nothing that brings code of its own."""

from __future__ import annotations

import pytest

from toolway.config.admission.command_line import is_interpreter
from toolway.config.admission.entry import AdmissionPolicy, as_untrusted, check_entry
from toolway.config.schema import Server
from toolway.config.server_entry import parse_entry
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.network import PUBLIC_ONLY, NetworkPolicy

ALLOWED = AdmissionPolicy(("npx", "uvx", "python3", "/opt/server"), frozenset({"TOKEN"}), frozenset({"TOKEN"}))


def rejection_reason(server: Server, policy: AdmissionPolicy, addresses: NetworkPolicy = PUBLIC_ONLY) -> str | None:
    rejection = check_entry(server, policy, addresses)
    return rejection.reason if rejection is not None else None


@pytest.mark.parametrize(
    "server",
    [
        Server(url="https://x/mcp"),
        Server(command="/opt/server", args=("--port", "1", "-c", "x")),
        Server(command="npx", args=("-y", "server-github@1.2.3", "-e", "for the server")),
        Server(command="npx", args=("@scope/server@2.0.0-beta.1",)),
        Server(command="uvx", args=("mcp-server-time==1.4.0",), env={"TOKEN": "x"}),
    ],
)
def test_what_the_operator_listed_is_taken(server: Server) -> None:
    assert rejection_reason(server, ALLOWED) is None


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (Server(command="bash", args=("-c", "id")), "not listed"),
        (Server(command="/usr/bin/npx", args=("server@1.0.0",)), "not listed"),
        (Server(command="npx", args=("-y", "server-github")), "exact version"),
        (Server(command="npx", args=("server@latest",)), "exact version"),
        (Server(command="npx", args=("./evil",)), "exact version"),
        (Server(command="npx", args=("https://evil/x.tgz",)), "exact version"),
        (Server(command="npx", args=("-c", "id")), "-c"),
        (Server(command="npx", args=("-yc", "id")), "-yc"),
        (Server(command="npx", args=("--call=id", "server@1.0.0")), "--call"),
        (Server(command="npx", args=("--package=evil", "server@1.0.0")), "--package"),
        (Server(command="uvx", args=("--from", "git+https://evil", "server==1.0")), "--from"),
        (Server(command="uvx", args=("--with", "evil", "server==1.0")), "--with"),
        (Server(command="python3", args=("-c", "import os")), "only scripts that are listed"),
        (Server(command="python3", args=("x.py",)), "only scripts that are listed"),
        (Server(command="uvx", args=("x==1.0",), env={"PYTHONPATH": "/tmp"}), "PYTHONPATH"),
        (Server(command="npx", args=("a@1.0.0",), env={"NODE_OPTIONS": "--require /tmp/x"}), "NODE_OPTIONS"),
        (Server(command="/opt/server", env={"LD_PRELOAD": "/tmp/x.so"}), "LD_PRELOAD"),
        (Server(command="/opt/server", env={"ld_library_path": "/tmp"}), "ld_library_path"),
    ],
)
def test_what_could_bring_code_of_its_own_is_not(server: Server, why: str) -> None:
    assert why in (rejection_reason(server, ALLOWED) or "")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        *(
            (name, True)
            for name in ("python", "python3.11", "/usr/bin/python3", "pypy3", "node-20", "NODE.EXE", "nodejs")
        ),
        *(
            (name, True)
            for name in ("bash", "ruby3.2", "perl5.36.0", "python3.11-dbg", "python3.13t", "iPython", "lua5.4")
        ),
        *((name, False) for name in ("node-server", "pythonista", "server", "my-bash-server", "sharp", "perl6-tool")),
    ],
)
def test_an_interpreter_is_known_by_its_name_with_or_without_a_version(command: str, expected: bool) -> None:
    assert is_interpreter(command) is expected


def test_without_a_list_nothing_is_started() -> None:
    assert rejection_reason(Server(command="/opt/server"), AdmissionPolicy()) is not None


@pytest.mark.attack("held-38")
@pytest.mark.parametrize("reference", ["${keyring:x}", "${file:/etc/passwd}", "${command:id}"])
def test_a_token_of_the_gateway_reads_no_secret_of_this_machine(reference: str) -> None:
    for way in (
        {"url": "https://x/mcp", "headers": {"A": reference}},
        {"command": "/opt/server", "env": {"A": reference}},
    ):
        assert "secret reference" in (rejection_reason(parse_entry(way, {}), ALLOWED) or "")


INSIDE = ("127.0.0.1", "127.1", "0x7f000001", "10.0.0.1", "169.254.169.254", "[::1]", "[64:ff9b::a00:1]", "0.0.0.0")


@pytest.mark.parametrize("host", INSIDE)
def test_a_token_of_the_gateway_opens_no_address_inside(host: str) -> None:
    for way in ({"url": f"http://{host}/mcp"}, {"openapi": {"url": f"http://{host}/api.json"}}):
        server = as_untrusted(parse_entry(way, {}))
        assert "connections to it are denied" in (rejection_reason(server, ALLOWED) or "")
        assert server.effective_network_policy.entry_hosts == ()


def test_what_the_operator_allowed_may_be_added() -> None:
    server = as_untrusted(Server(url="http://10.0.0.1/mcp"))
    assert rejection_reason(server, AdmissionPolicy(), NetworkPolicy(("10.0.0.0/8",))) is None
    assert rejection_reason(server, AdmissionPolicy(), NetworkPolicy(("10.0.0.2",))) is not None


@pytest.mark.attack("held-38")
def test_a_document_of_this_machine_is_not_read() -> None:
    assert "read a file" in (rejection_reason(parse_entry({"openapi": {"file": "/etc/passwd"}}, {}), ALLOWED) or "")


def test_what_is_listed_is_read_from_the_gateway_settings() -> None:
    block = {"allowedCommands": ["/opt/server --safe"], "allowedEnv": ["DATA_PATH"], "allowedVolumes": ["/srv/data/"]}
    policy = parse_gateway({"gateway": block}, {}).admission
    assert rejection_reason(Server(command="/opt/server", args=("--safe",), env={"DATA_PATH": "/x"}), policy) is None
    assert policy.volumes == ("/srv/data",)


@pytest.mark.parametrize(
    "block",
    [
        {"allowedCommands": ["npx 'x"]},
        {"allowedCommands": [""]},
        {"allowedEnv": ["LD_PRELOAD"]},
        {"allowedEnv": ["HTTPS_PROXY"]},
        {"allowedEnv": ["NOT A NAME"]},
        {"allowedVolumes": ["/"]},
        {"allowedVolumes": ["data"]},
        {"allowedVolumes": ["/srv/.."]},
    ],
)
def test_a_list_that_could_not_be_enforced_is_no_setting(block: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gateway({"gateway": block}, {})
    assert caught.value.code == "E-CONFIG-KEY"

"""What may be started through `/admin`: only what the operator listed, and nothing that brings its own code."""

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
def test_allowed_server_is_accepted(server: Server) -> None:
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
def test_server_that_could_bring_code_is_rejected(server: Server, why: str) -> None:
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
def test_interpreter_is_recognized_by_name_and_version(command: str, expected: bool) -> None:
    assert is_interpreter(command) is expected


def test_command_is_rejected_without_an_allow_list() -> None:
    assert rejection_reason(Server(command="/opt/server"), AdmissionPolicy()) is not None


@pytest.mark.attack("held-38")
@pytest.mark.parametrize("reference", ["${keyring:x}", "${file:/etc/passwd}", "${command:id}"])
def test_secret_references_are_rejected(reference: str) -> None:
    for way in (
        {"url": "https://x/mcp", "headers": {"A": reference}},
        {"command": "/opt/server", "env": {"A": reference}},
    ):
        assert "secret reference" in (rejection_reason(parse_entry(way, {}), ALLOWED) or "")


INSIDE = ("127.0.0.1", "127.1", "0x7f000001", "10.0.0.1", "169.254.169.254", "[::1]", "[64:ff9b::a00:1]", "0.0.0.0")


@pytest.mark.parametrize("host", INSIDE)
def test_private_addresses_are_rejected(host: str) -> None:
    for way in ({"url": f"http://{host}/mcp"}, {"openapi": {"url": f"http://{host}/api.json"}}):
        server = as_untrusted(parse_entry(way, {}))
        assert "connections to it are denied" in (rejection_reason(server, ALLOWED) or "")
        assert server.effective_network_policy.entry_hosts == ()


def test_allowed_private_address_is_accepted() -> None:
    server = as_untrusted(Server(url="http://10.0.0.1/mcp"))
    assert rejection_reason(server, AdmissionPolicy(), NetworkPolicy(("10.0.0.0/8",))) is None
    assert rejection_reason(server, AdmissionPolicy(), NetworkPolicy(("10.0.0.2",))) is not None


@pytest.mark.attack("held-38")
def test_local_openapi_document_is_rejected() -> None:
    assert "read a file" in (rejection_reason(parse_entry({"openapi": {"file": "/etc/passwd"}}, {}), ALLOWED) or "")


def test_admission_policy_is_read_from_gateway_settings() -> None:
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
def test_unenforceable_admission_setting_is_rejected(block: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gateway({"gateway": block}, {})
    assert caught.value.code == "E-CONFIG-KEY"

"""The commands against a gateway that runs: the same answers as against a file."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from toolway.cli.app import app
from toolway.cli.options import TargetOptions
from toolway.gateway.state_dir import StateDir

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
BROKEN = {
    "command": sys.executable,
    "args": ["-c", "import os, sys; sys.exit('missing GITHUB_TOKEN ' + os.environ['MY_SECRET'])"],
    "env": {"MY_SECRET": "do-not-show"},
}
SERVERS = {"fake": FAKE, "old": {**FAKE, "args": [*FAKE["args"], "--era", "legacy"]}, "broken": BROKEN}
TOOLSETS = {"sums": {"tools": ["fake.add"]}}


class Gateway:
    """A gateway in its own process, and commands that are run next to it."""

    def __init__(self, folder, **settings):
        self.state = folder / "state"
        self.config = folder / "gateway.json"
        self.config.write_text(json.dumps({"mcpServers": SERVERS, "toolway": {"toolsets": TOOLSETS, **settings}}))
        words = ["serve", "-c", str(self.config), "--port", "0", "--json", "--quiet", "--drain-delay", "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "toolway.cli", *words],
            env={**os.environ, "TOOLWAY_STATE": str(self.state), "XDG_CACHE_HOME": str(folder / "cache")},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        self.url = json.loads("".join(iter(self._stdout.readline, "}\n")) + "}")["url"].removesuffix("/mcp")
        self.token = StateDir(self.state).read_token()

    def close(self):
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(30) == 0
        self._stdout.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    gateway = Gateway(tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.close()


@pytest.fixture
def toolway(gateway, monkeypatch, tmp_path):
    """Run a command on the machine of the gateway, in a folder without a file of servers."""
    monkeypatch.setenv("TOOLWAY_STATE", str(gateway.state))
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_list_uses_and_reports_the_running_gateway(toolway, gateway):
    result = toolway("ls")
    states = {line.split()[0]: line.split()[1] for line in result.stdout.splitlines()[1:]}
    assert (states["fake"], states["old"]) == ("ready", "ready")
    assert states["broken"] in ("down", "starting")
    assert f"using the gateway at {gateway.url} ({gateway.config})" in result.stderr
    assert "do-not-show" not in result.output
    assert result.exit_code == 8


def test_show_reports_the_running_server(toolway):
    first, second = (json.loads(toolway("show", "fake", "--json", "-q").stdout)["servers"][0] for _ in range(2))
    assert first["pid"] == second["pid"]
    assert second["since"] >= first["since"] > 0


def test_show_includes_the_info_of_the_server(toolway, gateway, tmp_path):
    remote = json.loads(toolway("show", "fake", "--json", "-q").stdout)["servers"][0]["info"]
    local_file = tmp_path / "local.json"
    local_file.write_text(json.dumps({"mcpServers": {"fake": FAKE}}))
    local = json.loads(toolway("show", "fake", "--no-gateway", "-c", str(local_file), "--json", "-q").stdout)
    assert remote == local["servers"][0]["info"]
    assert (remote["server"], remote["name"], remote["era"]) == ("fake", "fake", "modern")
    shown = toolway("show", "fake", "-q").stdout
    assert f"  name          {remote['title']} (fake) {remote['version']}\n" in shown
    assert f"  capabilities  {', '.join(sorted(remote['capabilities']))}\n" in shown
    assert json.loads(toolway("show", "broken", "--json", "-q").stdout)["servers"][0]["info"] is None
    assert "info" not in json.loads(toolway("show", "--json", "-q").stdout)["servers"][0]


def test_misspelled_server_gets_suggestion(toolway):
    result = toolway("show", "faek")
    assert "did you mean fake?" in result.stderr
    assert result.exit_code == 1


def test_server_secrets_stay_with_gateway(toolway, gateway):
    result = toolway("show", "broken", "--gateway", gateway.url + "/mcp", "--token", gateway.token, "--json")
    [server] = json.loads(result.stdout)["servers"]
    assert "missing GITHUB_TOKEN ***" in server["stderr"]
    assert "do-not-show" not in result.output
    assert result.exit_code == 4


def test_tools_keep_their_names_from_the_file(toolway):
    document = json.loads(toolway("tools", "server", "counters", "--json").stdout)
    assert [tool["name"] for tool in document["tools"]] == ["fake.stats", "old.stats"]
    assert document["tools"][0]["input_schema"]["type"] == "object"
    assert [server["server"] for server in document["down"]] == ["broken"]
    assert {t["server"] for t in json.loads(toolway("tools", "-s", "old", "--json").stdout)["tools"]} == {"old"}


@pytest.mark.parametrize("server", ["fake", "old"])
def test_call_goes_through_gateway(toolway, server):
    result = toolway("call", f"{server}.add", "a:=1", "b:=2", "--quiet")
    assert (result.stdout, result.stderr, result.exit_code) == ("3\n", "", 0)
    document = json.loads(toolway("call", f"{server}.echo", "text=hé", "--json").stdout)
    assert (document["server"], document["tool"], document["text"]) == (server, "echo", "hé")


def test_progress_passes_through_gateway(toolway):
    result = toolway("call", "old.progress", "n:=3", "-v")
    assert result.stdout == "3 steps\n"
    assert "old.progress: 2/3 step 2\n" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("fake.fail",), 5, "reported a failure"),
        (("fake.sleep", "seconds:=30", "--timeout", "0.3"), 7, "E-TIMEOUT"),
        (("fake.ecco",), 1, "did you mean fake.echo"),
        (("fkae.echo",), 1, "did you mean fake"),
        (("echo",), 1, "E-TOOL-AMBIGUOUS"),
        (("fake.add", "a:=1"), 1, "name:=json"),
        (("fake.add", "oops"), 2, "E-USAGE"),
        (("broken.x",), 4, "missing GITHUB_TOKEN ***"),
    ],
)
def test_each_call_failure_has_same_exit_code_as_without_gateway(toolway, words, code, part):
    result = toolway("call", *words)
    assert part in result.stderr
    assert result.exit_code == code


def test_executed_comes_from_the_gateway(toolway):
    result = toolway("call", "fake.sleep", "seconds:=30", "--timeout", "0.3", "--json")
    error = json.loads(result.stdout)["error"]
    assert (error["code"], error["executed"], error["server"], error["tool"]) == (
        "E-TIMEOUT",
        "unknown",
        "fake",
        "sleep",
    )
    result = toolway("call", "fake.add", "a:=1", "--json")
    error = json.loads(result.stdout)["error"]
    assert (error["code"], error["rpc_code"], error["message"]) == (
        "E-PROTOCOL",
        -32602,
        "fake answered with error -32602",
    )


@pytest.mark.promise("C13")
def test_invalid_arguments_are_listed_as_without_gateway(toolway):
    result = toolway("call", "fake.add", "a=one", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"], error["server"], error["tool"]) == (2, "E-ARGUMENTS", "fake", "add")
    found = {"path": "$.a", "problem": "is a string", "expected": "a number", "nearest": ""}
    assert error["violations"] == [found]


# -- which gateway -----------------------------------------------------------------------------------------------------


def test_other_config_or_no_gateway_option_skips_gateway(toolway, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"mcpServers": {"off": {"command": "x", "enabled": False}}}))
    for words in (["-c", str(other)], ["--no-gateway", "-c", str(other)]):
        result = toolway("ls", "--json", *words)
        assert [server["server"] for server in json.loads(result.stdout)["servers"]] == ["off"]
        assert result.stderr == ""


def test_config_file_of_gateway_selects_the_gateway(toolway, gateway):
    assert "using the gateway" in toolway("tools", "-c", os.path.relpath(gateway.config)).stderr


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--gateway", "http://127.0.0.1:9", "--token", "x"), 4, "E-GATEWAY ("),
        (("--gateway", "nonsense"), 2, "E-USAGE"),
        (("--token", "wrong"), 6, "E-GATEWAY-TOKEN"),
    ],
)
def test_unusable_gateway_has_code_and_hint(toolway, words, code, part):
    for command in (["ls"], ["call", "fake.add", "a:=1", "b:=2"], ["keys", "ls"]):
        result = toolway(*command, *words)
        assert part in result.stderr
        assert re.search(r"^  hint +\S", result.stderr, re.MULTILINE)
        assert result.exit_code == code


# -- keys and clients --------------------------------------------------------------------------------------------------


def test_key_is_limited_to_its_toolset_until_revoked(toolway, gateway):
    made = json.loads(toolway("keys", "create", "bob", "--only", "sums", "--json").stdout)
    listed = json.loads(toolway("keys", "ls", "--json").stdout)["keys"]
    assert [(key["id"], key["name"], key["access"]) for key in listed] == [(made["id"], "bob", ["sums"])]
    assert made["token"] not in toolway("keys", "ls").output

    def call(tool):
        return toolway("call", tool, "a:=1", "b:=2", "--token", made["token"])

    assert call("fake.add").stdout == "3\n"
    assert "E-NOT-FOUND" in call("fake.sleep").stderr
    assert "E-GATEWAY-ADMIN" in toolway("ls", "--token", made["token"]).stderr
    assert toolway("keys", "revoke", made["id"]).exit_code == 0
    assert call("fake.add").exit_code == 6
    assert toolway("keys", "revoke", made["id"]).exit_code == 1


def test_keys_are_stored_in_file_without_gateway(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def toolway(*words):
        return CliRunner().invoke(app, list(words), catch_exceptions=False)

    assert "no API keys yet" in toolway("keys", "ls").stderr
    made = toolway("keys", "create", "ci", "--admin")
    assert re.fullmatch(r"tw_\S{40,}\n", made.stdout)
    principal = StateDir.default(os.environ).open_key_store().authenticate(made.stdout.strip())
    assert principal is not None and principal.admin
    [row] = toolway("keys", "ls").stdout.splitlines()[1:]
    assert row.split()[1:6] == ["ci", "everything", "and", "/admin,", "100/s"]
    assert toolway("keys", "revoke", row.split()[0]).exit_code == 0
    assert toolway("keys", "revoke", row.split()[0]).exit_code == 1
    assert toolway("keys", "create", "").exit_code == 2
    wide, narrow = (
        toolway("keys", "create", "bot", "--rate", "none"),
        toolway("keys", "create", "bot", "--only", "sums"),
    )
    assert "no rate limit" in wide.stderr and "it can call every tool; to limit it" in wide.stderr
    assert "sums, 100/s" in narrow.stderr and "every tool" not in narrow.stderr
    assert "everything, no rate limit" in toolway("keys", "ls").stdout


def test_key_over_its_rate_limit_is_rejected(toolway, gateway):
    made = json.loads(toolway("keys", "create", "bot", "--rate", "1/h", "--json").stdout)
    assert made["rate"] == "1/h" and "everything, 1/h" in toolway("keys", "ls").stdout

    def call():
        return toolway("call", "fake.add", "a:=1", "b:=2", "--token", made["token"])

    assert call().stdout == "3\n"
    refused = call()
    assert refused.exit_code != 0 and "1/h" in refused.stderr
    assert toolway("keys", "revoke", made["id"]).exit_code == 0
    wrong = toolway("keys", "create", "bot", "--rate", "often")
    assert wrong.exit_code == 2 and "600/min" in wrong.stderr and "or none" in wrong.stderr


def test_connect_prints_config_for_each_client(toolway, gateway):
    url, bearer = f"{gateway.url}/mcp", f"Bearer {gateway.token}"
    command = toolway("connect", "claude-code", "--print").stdout
    assert command == f"claude mcp add --transport http toolway {url} --header 'Authorization: {bearer}'\n"
    headers = {"Authorization": bearer}
    cursor = json.loads(toolway("connect", "cursor", "--print").stdout)
    assert cursor == {"mcpServers": {"toolway": {"url": url, "headers": headers}}}
    vscode = json.loads(toolway("connect", "vscode", "--print", "--toolset", "sums").stdout)
    assert vscode == {"servers": {"toolway-sums": {"type": "http", "url": f"{url}/sums", "headers": headers}}}
    document = json.loads(toolway("connect", "generic", "--print", "--json").stdout)
    assert json.loads(document["text"])["mcpServers"]["toolway"]["url"] == document["url"] == url
    assert toolway("connect", "emacs", "--print").exit_code == 2
    assert toolway("connect", "codex", "--print", "--toolset", "no toolset").exit_code == 2
    named = toolway("connect", "cursor", "--print", "--gateway", "http://tools.example:1", "--token", "t").stdout
    entry = {"url": "http://tools.example:1/mcp", "headers": {"Authorization": "Bearer t"}}
    assert json.loads(named) == {"mcpServers": {"toolway": entry}}


@pytest.mark.parametrize(
    "words",
    [
        ("--all", "--print"),
        ("cursor", "codex", "--print"),
        ("cursor", "--toolset", "sums"),
        ("cursor", "--gateway", "http://tools.example:1"),
    ],
)
def test_connect_rejects_conflicting_options(toolway, words):
    result = toolway("connect", *words)
    assert (result.exit_code, "toolway connect CLIENT --print" in result.stderr) == (2, True)


def test_connect_prints_valid_toml_for_codex(toolway, gateway):
    import tomllib

    server = tomllib.loads(toolway("connect", "codex", "--print").stdout)["mcp_servers"]["toolway"]
    assert server == {"url": f"{gateway.url}/mcp", "http_headers": {"Authorization": f"Bearer {gateway.token}"}}


def test_connect_before_start_prints_configured_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}, "toolway": {"gateway": {"port": 9999}}}')
    monkeypatch.setenv("TOOLWAY_CONFIG", str(tmp_path / "mcp.json"))
    result = CliRunner().invoke(app, ["connect", "cursor", "--print"])
    assert json.loads(result.stdout)["mcpServers"]["toolway"]["url"] == "http://127.0.0.1:9999/mcp"
    assert "toolway serve" in result.stderr


def test_restart_restarts_server_of_gateway(toolway):
    first = json.loads(toolway("show", "old", "--json", "-q").stdout)["servers"][0]
    assert json.loads(toolway("restart", "old", "--json", "-q").stdout) == {"restarting": "old"}
    toolway("call", "old.add", "a:=1", "b:=2")
    again = json.loads(toolway("show", "old", "--json", "-q").stdout)["servers"][0]
    assert again["pid"] != first["pid"]
    missing = toolway("restart", "oldd")
    assert "did you mean old?" in missing.stderr
    assert missing.exit_code == 1


def test_restart_needs_a_gateway(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["restart", "fake"])
    assert "toolway serve" in result.stderr
    assert result.exit_code == 4


def test_bare_command_shows_gateway_servers_and_next_step(toolway):
    document = json.loads(toolway("--json", "-q").stdout)
    states = {server["server"]: server["state"] for server in document["servers"]}
    assert states["fake"] == "ready"
    assert document["next"]["command"] == "toolway doctor broken"
    result = toolway()
    assert "do-not-show" not in result.output
    assert result.exit_code == 8


def test_gateway_processes_are_shown(toolway):
    rows = json.loads(toolway("ps", "--json", "-q").stdout)["processes"]
    assert {"fake", "old"} <= {row["server"] for row in rows}
    assert all(isinstance(row["pid"], int) for row in rows)


def test_gateway_logs_mask_secrets(toolway):
    result = toolway("logs", "broken", "-q", "-n", "1")
    assert result.stdout == "missing GITHUB_TOKEN ***\n"
    everything = json.loads(toolway("logs", "--json", "-q").stdout)["logs"]
    assert everything.keys() == SERVERS.keys()


def test_key_without_admin_rights_lists_its_tools(toolway, gateway):
    key = json.loads(toolway("keys", "create", "ana", "--only", "sums", "--json").stdout)["token"]
    as_ana = ("--gateway", gateway.url, "--token", key)
    listed = json.loads(toolway("tools", *as_ana, "--json").stdout)
    assert [each["name"] for each in listed["tools"]] == ["fake.add"]
    assert "toolway call fake.add a:=1 b:=1" in toolway("tools", "fake.add", "-s", "fake", *as_ana).stdout
    assert toolway("call", "fake.add", "a=1", "b=2", *as_ana).stdout == "3\n"
    assert "did you mean" in toolway("call", "fake.add", "aa=1", *as_ana).stderr
    assert "E-GATEWAY-ADMIN" in toolway("ls", *as_ana).stderr


def test_prompts_and_resources_pass_through_gateway(toolway):
    assert toolway("prompts", "fake.greet", "name=Bo", "-q").stdout == "user: Greet Bo in a warm tone.\n"
    assert "fake://text" in toolway("resources").stdout


@pytest.mark.parametrize("address", ["https://t.example/toolway", "https://t.example/a/b/mcp", "http://h:1/x/"])
def test_gateway_url_may_have_a_path(address):
    from toolway.cli.gateway_client import gateway_from_url

    url = gateway_from_url(TargetOptions(gateway=address, token="t")).url
    assert url == address.removesuffix("/").removesuffix("/mcp")


def test_whoami_shows_owner_and_expiry_of_token(toolway):
    assert "the local token" in toolway("whoami").stdout
    made = json.loads(toolway("keys", "create", "ci", "--only", "sums", "--expires", "90d", "--json").stdout)
    result = toolway("whoami", "--token", made["token"])
    assert "an API key" in result.stdout and "sums" in result.stdout and made["token"] not in result.output
    found = json.loads(toolway("whoami", "--token", made["token"], "--json").stdout)
    assert (found["name"], found["kind"], found["expires"]) == ("ci", "key", made["expires"])
    listed = toolway("keys", "ls")
    assert "until" in listed.stdout.splitlines()[0]
    toolway("keys", "revoke", made["id"])
    assert toolway("whoami", "--token", made["token"]).exit_code != 0


@pytest.mark.parametrize("when", ["yesterday", "0d", "-5d", "2020-01-31", "10x", "d", ""])
def test_invalid_key_expiry_is_rejected(toolway, when):
    assert toolway("keys", "create", "ci", "--expires", when).exit_code == 2


def test_gateway_without_login_has_no_sessions(toolway):
    for words in (("users", "ls"), ("users", "logout", "alice")):
        result = toolway(*words)
        assert result.exit_code == 3 and "E-LOGIN-NONE" in result.stderr


def test_sessions_are_listed_and_ended(toolway, monkeypatch):
    from toolway.cli.gateway_client import GatewayClient

    sent = []

    async def request(self, method, path, body=None):
        sent.append((method, path))
        person = {"subject": "1", "name": "alice@acme", "groups": ["eng", "ops"], "client": "claude", "expires": 0.0}
        provider = {"issuer": "https://login.example", "problem": "it answered with HTTP 404"}
        return {"sessions": [person], "provider": provider} if method == "GET" else {"ended": "user:1", "known": False}

    monkeypatch.setattr(GatewayClient, "request_admin", request)
    listed = toolway("users", "ls")
    assert "HTTP 404" in listed.stderr and "E-LOGIN-PROVIDER" in listed.stderr
    assert listed.stdout.splitlines()[1].split()[:5] == ["1", "alice@acme", "eng,", "ops", "claude"]
    result = toolway("users", "logout", "a/b")
    assert sent[-1] == ("DELETE", "sessions/a%2Fb") and "treated it as a subject" in result.stderr


@pytest.mark.user_trial("20")
def test_local_token_is_suggested_only_on_gateway_machine(toolway):
    from toolway.cli.gateway_client import _error_from_response

    assert "toolway keys local-token" in toolway("ls", "--token", "wrong").stderr
    remote = _error_from_response("https://t.example", 401, {}, is_local=False)
    assert "local-token" not in remote.hint and "--token" in remote.hint

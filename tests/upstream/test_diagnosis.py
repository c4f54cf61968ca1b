import time

import pytest

from toolway.upstream.diagnosis import diagnose


def cause_of(stderr="", command="x", exit_code: int | None = 1, code="E-STDIO-EXIT"):
    found = diagnose(command, exit_code, stderr, code)
    return found.cause if found else None


def fix_of(stderr="", command="x", exit_code: int | None = 1, code="E-STDIO-EXIT"):
    found = diagnose(command, exit_code, stderr, code)
    return found.hint if found else None


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("npx", "Node.js is not installed"),
        ("/usr/bin/npx", "Node.js is not installed"),
        ("uvx", "uv is not installed"),
        ("python", "no program called python"),
        ("/opt/x/server", "the file /opt/x/server does not exist"),
        ("frobnicate", "frobnicate is not installed, or not on PATH"),
        ("npx -y pkg", "in one string"),
    ],
)
def test_missing_command_is_explained_by_its_name(command, part):
    found = diagnose(command, None, "", "E-STDIO-ENOENT")
    assert found is not None
    assert part in found.cause
    assert found.hint


def test_hint_splits_command_line_given_as_one_string():
    assert '"command": "npx", "args": ["-y", "pkg"]' in fix_of(
        command="npx -y pkg", exit_code=None, code="E-STDIO-ENOENT"
    )


@pytest.mark.parametrize(
    ("stderr", "part"),
    [
        (
            "npm error code E404\nnpm error 404  '@acme/nope@*' is not in this registry.",
            "npm package @acme/nope does not",
        ),
        (
            "npm error 404  The requested resource '@acme/no@*' could not be found or you do not have permission",
            "npm package @acme/no does not",
        ),
        ("npm ERR! code E404", "the npm package does not exist"),
        ("npm error code ENOTFOUND\nnpm error network request failed", "npm cannot reach its registry (ENOTFOUND)"),
        ("npm error code UNABLE_TO_GET_ISSUER_CERT_LOCALLY", "TLS certificate"),
        ("ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "TLS certificate"),
        ("Error: self-signed certificate in certificate chain", "TLS certificate"),
        ("ERROR: No matching distribution found for mcp-nope", "Python package mcp-nope"),
        ("  ╰─▶ Because nope was not found in the package registry and", "Python package nope"),
        ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "Docker is not running"),
        ("docker: pull access denied for acme/x, repository does not exist", "the image acme/x"),
        ("/usr/bin/env: ‘node’: No such file or directory", "the program node"),
        ("env: node: No such file or directory", "the program node"),
        ("sh: 1: tsx: not found", "the program tsx"),
        ("bash: line 1: jq: command not found", "the program jq"),
        ("zsh: command not found: deno", "the program deno"),
        ("Error: spawn git ENOENT\n    at ChildProcess", "tried to run git"),
        (
            "was compiled against a different Node.js version using\nNODE_MODULE_VERSION 108",
            "another version of Node.js",
        ),
        ("npm WARN EBADENGINE Unsupported engine", "Node.js is too old"),
        ("ReferenceError: ReadableStream is not defined", "Node.js is too old"),
        ("SyntaxError: Unexpected token '??='", "Node.js is too old"),
        ("ERROR: Package 'x' requires a different Python: 3.9.1 not in '>=3.10'", "wrong version"),
        ("ModuleNotFoundError: No module named 'mcp'", "Python module mcp"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from /x", "Node.js module zod"),
        ("Error: Cannot find module '/x/dist/index.js'", "the file /x/dist/index.js does not exist"),
        ("/lib/libc.so.6: version `GLIBC_2.38' not found", "GLIBC_2.38"),
        ("OSError: [Errno 8] Exec format error: 'x'", "another processor"),
        ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", "ran out of memory"),
        ("Error: GITHUB_TOKEN is required", "the variable GITHUB_TOKEN is missing"),
        ("BRAVE_API_KEY environment variable is not set", "the variable BRAVE_API_KEY is missing"),
        ("Please provide SLACK_BOT_TOKEN", "the variable SLACK_BOT_TOKEN is missing"),
        ("KeyError: 'NOTION_TOKEN'", "the variable NOTION_TOKEN is missing"),
        ("missing GITHUB_TOKEN", "the variable GITHUB_TOKEN is missing"),
        ("Error: missing token", "a credential is missing or wrong (token)"),
        ("Error: No API key given", "a credential is missing or wrong (API key)"),
        ("x: error: the following arguments are required: --root", "an argument is missing: --root"),
        ("x: error: unrecognized arguments: --rot", "does not know the argument --rot"),
        ("Error: listen EADDRINUSE: address already in use :::3000", "the port 3000"),
        ("OSError: [Errno 98] Address already in use", "a port is already in use"),
        ("Error: EACCES: permission denied, open '/etc/x'", "may not access /etc/x"),
        ("PermissionError: [Errno 13] Permission denied: '/srv/y'", "may not access /srv/y"),
        ("Error: ENOENT: no such file or directory, stat '/data'", "the file /data does not exist"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a.db'", "the file a.db does not exist"),
        ("HTTP 401 Unauthorized", "its credential was rejected"),
        ("Request failed with status code 401", "its credential was rejected"),
        ("HttpError: Bad credentials", "its credential was rejected"),
        ("HTTP 403 Forbidden", "lacks a right"),
        ("Error: getaddrinfo ENOTFOUND api.example.com", "the host api.example.com"),
        ("socket.gaierror: [Errno -2] Name or service not known", "name of a host"),
        ("Error: connect ECONNREFUSED 127.0.0.1:5432", "nothing listens at 127.0.0.1:5432"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "is not running"),
        ("Error: connect ETIMEDOUT 10.0.0.1:443", "in time"),
    ],
)
def test_known_stderr_messages_are_explained(stderr, part):
    found = diagnose("x", 1, stderr, "E-STDIO-EXIT")
    assert found is not None
    assert part in found.cause
    assert found.hint


def test_hint_for_missing_variable_is_an_entry_to_copy():
    assert fix_of("Error: GITHUB_TOKEN is required") == (
        'add it to the server\'s entry: "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}'
    )


def test_cause_is_last_line_of_traceback():
    stderr = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    f()\nValueError: odd number\n'
    assert cause_of(stderr) == "ValueError: odd number"


def test_json_syntax_error_is_not_blamed_on_old_node():
    assert cause_of("SyntaxError: Unexpected token < in JSON at position 0") == (
        "SyntaxError: Unexpected token < in JSON at position 0"
    )


def test_ordinary_log_lines_have_no_cause():
    assert cause_of("INFO starting up\nlistening, node 22, ERR_SOMETHING_ODD noted") is None


@pytest.mark.parametrize(
    ("exit_code", "part"),
    [
        (127, "was not found"),
        (126, "not executable"),
        (-9, "killed"),
        (137, "killed"),
        (-11, "crashed"),
        (0, "by itself"),
    ],
)
def test_exit_code_is_explained_without_stderr(exit_code, part):
    assert part in cause_of("", exit_code=exit_code)


def test_generic_exit_code_is_not_explained():
    assert diagnose("x", 1, "", "E-STDIO-EXIT") is None
    assert diagnose("x", None, "some log line", "E-HEALTH") is None


@pytest.mark.parametrize("code", ["E-HTTP-CONNECT", "E-HTTP-DNS", "E-HTTP-TLS", "E-STDIO-EACCES"])
def test_transport_error_codes_have_hints(code):
    assert fix_of(exit_code=None, code=code)


def test_slow_start_of_package_runner_is_a_download():
    assert "downloading" in cause_of(command="npx", exit_code=None, code="E-START-TIMEOUT")
    assert cause_of(command="./server", exit_code=None, code="E-START-TIMEOUT") is None


def test_cause_strips_control_characters():
    assert cause_of("Error: \x1b[31mred\u202e") == "Error: [31mred"


FLOODS = [
    unit * 100_000 for unit in ("A", "A_", "no ", "a: ", "'", "npm error 404 ", "EACCES ", "Error", "\n", "[", "\\")
]


@pytest.mark.parametrize(
    "flood", [*FLOODS, "Requires node" + "\n" * 8000, "npm error 404" + "\n" * 8000], ids=range(13)
)
def test_large_stderr_is_diagnosed_quickly(flood):
    def seconds(end):
        began = time.thread_time()
        cause_of(flood + end)
        return time.thread_time() - began

    assert min(seconds("." * n) for n in range(1, 4)) < 0.1  # each is another text: causes are remembered

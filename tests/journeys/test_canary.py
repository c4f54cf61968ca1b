"""A canary in every place where a secret can be, every command of `toolway` run, and it is nowhere it should not be.

The commands are those that the program itself lists: a new one is run without being written down here. What a command
needs as arguments is made up from the names of its parameters; `MORE` has what is worth trying besides.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.journeys.canary_lab import Lab
from tests.journeys.canary_servers import echo_server
from tests.journeys.canary_watch import Arguments, Canaries
from tests.parts.identity.exchange_lab import ExchangeIssuer, Target, exchange_auth, on_behalf
from toolway.cli.app import app

TOOLWAY = [sys.executable, "-m", "toolway.cli"]
LONG = bool(os.environ.get("TOOLWAY_LONG"))
LIMIT = 90.0  # seconds for one command
SERVES = 8.0 if LONG else 4.0  # seconds for one that does not end by itself
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at arguments in /proc"),
    pytest.mark.timeout(900),
]

# What stands for a parameter, by its name; whatever is not here is called like a server.
WORDS: dict[str, list[str]] = {
    "tool": ["good.add", "http-401.x", "keyring.fail"],
    "arguments": ["a:=1"],
    "name": ["good", "keyring", "http-query"],
    "client": ["cursor"],
    "clients": ["cursor"],
    "code": ["E-SECRETS"],
    "shell": ["bash"],
    "id_": ["nonsense"],
    "version": ["1"],
    "file": [".mcp.json"],
    "target": ["https://me:CANARY-argument@127.0.0.1:1/mcp"],
}
MORE: dict[tuple[str, ...], list[list[str]]] = {
    (): [["--no-gateway"], ["--version"], ["nonsense"], ["--config", "~/nowhere.json"]],
    ("doctor",): [["--client", "cursor"], ["--client", "codex"], ["--fix"]],
    ("tools",): [["--refresh"], ["add", "--wait", "20"]],
    ("config",): [["--origin"], ["--json", "--origin"]],
    ("config", "validate"): [["--config", "~/broken.json"], ["--config", "~/twice.json"]],
    ("ls",): [["--config", "~/broken.json"], ["--config", ".mcp.json"]],
    ("clients", "import"): [["--all"], ["--yes"], ["cursor", "--yes"], ["gemini", "--yes"], ["--dry-run"]],
    ("clients", "export"): [["cursor", "--yes"], ["claude-code", "--yes"], ["codex", "--yes"], ["--all", "--yes"]],
    ("connect",): [["cursor", "--print"], ["cursor", "--yes"]],
    ("show",): [["good", "--entry"]],
    ("clients", "sync"): [["--yes"], ["--dry-run"]],
    ("init",): [["--yes"]],
    ("trust",): [["--digest", "0" * 64]],
    ("secrets", "set"): [["good.NEW"], ["good.NEW", "--json"], ["not a name"]],
    ("secrets", "rm"): [["kept.unused"]],
    ("serve",): [["--stdio"], ["--port", "0"], ["--port", "0", "--verbose"]],
    ("logs",): [["good", "--follow"], ["dead"]],
    ("call",): [["good.add", "a:=1", "b:=2"], ["dead.x"], ["http-500.x"], ["refuses.x", "--json"], ["failing.x"]],
}
ENDLESS = {("serve",), ("logs",)}
# They start all servers, which takes seconds of CPU time. Unless LONG, each runs once: some print text, some JSON; the
# rest of the commands print JSON, and what is worth trying first.
DEAR: dict[tuple[str, ...], list[str]] = {
    **{each: [] for each in (("ls",), ("clients", "import"), ("doctor",))},
    ("search",): ["--json"],
    ("clients", "sync"): ["--json"],
    ("serve",): ["--stdio"],  # `test_gateway_shows_no_secret` runs it with a port
}
# Unless LONG: `init` and `clients sync` import as `clients import` does, the others list servers as `ls` does.
# `doctor` has its own test in tests/doctor.
DEAREST = {
    *(("tools",), ("tools", "cost"), ("show",), ("prompts",), ("resources",), ("init",), ("logs",)),
    *(("clients", "sync"), ("doctor",), ("agent", "replay"), ("cluster", "trust")),
}
SHOW_THE_TOKEN = {"local-token", "--print"}  # of the gateway: that is what they are for


def all_commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the program, with its path; the program alone is one too."""
    group = typer.main.get_command(app) if group is None else group
    yield path, group
    if hasattr(group, "list_commands"):
        context = typer.Context(group)
        for name in group.list_commands(context):
            yield from all_commands(group.get_command(context, name), (*path, name))


COMMANDS = {path: command for path, command in all_commands() if LONG or path not in DEAREST}


def invocations(path: tuple[str, ...], command: Any) -> list[list[str]]:
    """The command with what it must have, with what it may have, and with what is worth trying."""
    group = hasattr(command, "list_commands")
    params = [] if group else [p for p in command.params if p.param_type_name == "argument" and not _hidden(p)]
    needed = [WORDS.get(p.name, ["good"]) for p in params if p.required]
    possible = [WORDS.get(p.name, ["good"]) for p in params]
    made = [[words[min(n, len(words) - 1)] for words in needed] for n in range(max(map(len, needed), default=1))]
    if len(possible) > len(needed):
        made.append([words[0] for words in possible])
    if not LONG and path in DEAR:
        return [[*made[0], *DEAR[path]]]
    if not LONG:
        return [made[0] if group else [*made[0], "--json"], *MORE.get(path, [])[:1]]
    return [*(words + flags for words in made for flags in ([], ["--json"], ["-v"])), *MORE.get(path, [])]


def _hidden(param: Any) -> bool:
    return bool(getattr(param, "hidden", False))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with echo_server() as found:
        yield found


@pytest.fixture(scope="module")
def made_lab(tmp_path_factory: pytest.TempPathFactory, port: int) -> Lab:
    """A lab whose secrets were encrypted once, because that takes long on purpose, and a copy of its folder."""
    folder = tmp_path_factory.mktemp("canary")
    made = Lab(folder / "lab", port, Canaries(str(folder)))
    for name, text in (
        ("broken.json", '{"mcpServers": {"x": {"env": {"API_TOKEN": "%s",}, "a" "b"}'),
        ("twice.json", '{"mcpServers": {"x": {"command": "x", "env": {"T": "%s", "T": "%s"}}}}'),
    ):
        path = made.home / name
        path.write_text(text.replace("%s", made.canary(name)))
        made.placed[path] = path.read_bytes()
    shutil.copytree(made.folder, folder / "as-made", symlinks=True)
    return made


@pytest.fixture
def lab(made_lab: Lab) -> Lab:
    """The lab as it was made: nothing that another test wrote, and no canary that one made up."""
    shutil.rmtree(made_lab.folder)
    shutil.copytree(made_lab.folder.with_name("as-made"), made_lab.folder, symlinks=True)
    made_lab.canary.forget("argument", "typed")
    return made_lab


def run(lab: Lab, words: list[str], endless: bool = False) -> bytes:
    """All that a command writes. What does not end by itself is ended as a user would."""
    given = [word.replace("~", str(lab.home)).replace("CANARY-argument", lab.canary("argument")) for word in words]
    process = subprocess.Popen(
        [*TOOLWAY, *given],
        cwd=lab.project,
        env=lab.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # we may run in the background
    )
    piped = lab.canary("typed").encode() + b"\n" if words[:2] == ["secrets", "set"] else b""
    try:
        written, _ = process.communicate(piped, timeout=SERVES if endless else LIMIT)
    except subprocess.TimeoutExpired:
        assert endless, f"{words} did not end"
        process.send_signal(signal.SIGINT)
        written, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return written


def meant(path: tuple[str, ...], words: list[str]) -> set[str]:
    """What a command is there to show, and what the user has just typed."""
    shown = {"gateway"} if SHOW_THE_TOKEN & {*path, *words} else set()
    return shown | ({"argument"} if any("CANARY-argument" in word for word in words) else set())


@pytest.mark.parametrize("path", COMMANDS, ids=["-".join(("toolway", *path)) for path in COMMANDS])
def test_no_command_shows_a_secret(lab: Lab, path: tuple[str, ...]) -> None:
    leaks: list[str] = []
    with Arguments(lab.canary) as arguments:
        for words in invocations(path, COMMANDS[path]):
            written = run(lab, [*path, *words], endless=path in ENDLESS)
            shown = lab.canary.seen_in(written) - meant(path, words)
            leaks += [f"{place} in the output of {[*path, *words]}:\n{_around(written, lab, place)}" for place in shown]
    leaks += [leak for leak in arguments.leaks if not leak.startswith("argument ")]
    leaks += lab.leaks_on_disk()
    assert not leaks, "\n".join(leaks)
    assert arguments.looks


def _around(written: bytes, lab: Lab, place: str) -> str:
    lines = [line for line in written.splitlines() if place in lab.canary.seen_in(line)]
    return "\n".join(line.decode(errors="replace")[:300] for line in lines[:3])


def test_gateway_shows_no_secret(lab: Lab) -> None:
    """Its log, its answers, and its stored state."""
    shown = run(lab, ["trust", "--json"])
    digest = json.loads(shown)["files"][0]["digest"]
    run(lab, ["trust", "--digest", digest])
    log = lab.folder / "gateway.log"
    with Arguments(lab.canary) as arguments, log.open("wb") as stream:
        gateway = subprocess.Popen(
            [*TOOLWAY, "serve", "--port", "0", "--verbose"],
            cwd=lab.project,
            env=lab.environ,
            stdout=stream,
            stderr=stream,
        )
        try:
            written = b"".join(_asked(lab, log))
        finally:
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(LIMIT)
    assert b"serving at" in log.read_bytes()
    assert b"using the gateway" in written
    kept = lab.home / ".local/state/toolway/gateway"
    assert b'"call.outcome"' in b"".join(file.read_bytes() for file in kept.glob("audit.sqlite*"))
    assert list((kept / "alerts").glob("*-server-down-*.md"))
    assert lab.canary.seen_in(written) == set(), _around(written, lab, next(iter(lab.canary.seen_in(written)), ""))
    assert arguments.leaks == set()
    assert lab.leaks_on_disk() == []


def _asked(lab: Lab, log: Path) -> Iterator[bytes]:
    deadline = time.monotonic() + LIMIT
    while b"serving at" not in log.read_bytes():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    for words in (
        ["ls"],
        ["show", "--json"],
        ["tools"],
        ["call", "good.add"],
        ["call", "dead.x"],
        ["call", "http-401.x"],
    ):
        yield run(lab, words)
    for words in (["logs"], ["restart", "keyring"], ["doctor", "keyring"], ["keys", "create", "x"], []):
        yield run(lab, words)


SHOWN = [[], ["doctor", "dead"], ["secrets", "set", "good.NEW"], *([["ls"], ["show"]] if LONG else [])]


@pytest.mark.parametrize("words", SHOWN)
def test_terminal_shows_no_secret(lab: Lab, words: list[str]) -> None:
    """Colors, spinners and prompts write in their own ways."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*TOOLWAY, *words],
        cwd=lab.project,
        env={**lab.environ, "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # a password is asked for at the terminal itself
    )
    os.close(theirs)
    written = b""
    while select.select([ours], [], [], LIMIT)[0]:
        try:
            written += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if b"not shown" in written and b"stored" not in written and "typed" not in lab.canary.all:
            os.write(ours, lab.canary("typed").encode() + b"\n")
    os.close(ours)
    assert process.wait(LIMIT) in (0, 3, 4, 8, 9)
    assert lab.canary.seen_in(written) == set()
    assert lab.leaks_on_disk() == []


def test_lab_notices_leaks(lab: Lab) -> None:
    """What the tests above look for is there to be found: servers do blurt out, and eyes and ears are open."""
    token = lab.canary("env")
    told = subprocess.run(
        [sys.executable, str(lab.tools / "leaky.py")],
        env={"API_TOKEN": token},
        input=b"",
        capture_output=True,
        timeout=60,
    )
    assert lab.canary.seen_in(told.stderr) == {"env"}
    assert lab.canary.seen_in(base64.b64encode(f"Basic me:{token}".encode())) == {"env"}
    assert lab.canary.seen_in(token[:12].encode()) == {"env"}
    (lab.home / "left").write_text(f"Bearer {token}")
    assert lab.leaks_on_disk() == [f"env in {lab.home / 'left'}"]
    with Arguments(lab.canary) as arguments:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1)", token], timeout=60)
    assert [leak.split()[0] for leak in arguments.leaks] == ["env"]
    assert lab.canary.seen_in(run(lab, ["keys", "local-token"])) == {"gateway"}
    # The servers that name references do get their secrets, so they could have shown them.
    written = run(lab, ["call", "keyring.add", "--json"])
    assert b"done" in written, written.decode()


def test_every_command_is_run() -> None:
    assert {("secrets", "set"), ("trust",), ("clients", "import"), ("ls",), ("config", "path"), ("serve",), ()} <= set(
        COMMANDS
    )
    assert all(path in COMMANDS for path in {*MORE, *DEAR} - DEAREST), "a command that has gone"
    assert all(invocations(path, command) for path, command in COMMANDS.items())


# -- the token of a caller, at a gateway that calls a server on its behalf


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["exchange", "obo", "id-jag"])
async def test_callers_token_goes_only_to_its_issuer(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    audit = tmp_path / "audit.jsonl"
    async with ExchangeIssuer() as issuer, ExchangeIssuer() as other:
        auth = exchange_auth(issuer, type=kind)
        if kind == "id-jag":
            auth |= {"issuer": other.issuer, "idpClientId": "gateway", "idpClientSecret": "canary-idp-secret"}
        at_server = other if kind == "id-jag" else issuer
        target = Target(at_server)
        async with on_behalf(tmp_path, issuer, {"jira": target}, auth, audit) as found:
            token = issuer.token("alice")
            answers = [await found.call("jira__echo", {"text": "x"}, token=token) for _ in range(2)]
            assert "result" in answers[0], answers[0]
            issuer.status = 400  # it repeats the whole form in its error
            refused = issuer.token("bob")
            answers.append(await found.call("jira__echo", {"text": "x"}, token=refused))
            assert "error" in answers[-1]
            paths = ("/admin/servers", "/admin/sessions", "/admin/calls", "/metrics", "/who")
            answers += [{"body": (await found.ask("GET", path)).body.decode()} for path in paths]
            answers.append({"status": str(found.hub.servers.status())})
        received = [form.get("subject_token") or form.get("assertion") for form in issuer.forms]
        assert received == [token, refused]
        exchanged = [*issuer.owners, *other.owners]
        shown = json.dumps(answers) + caplog.text + "".join(map(repr, found.gateway.__dict__.values()))
        files = "".join(file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file())
        for secret in (token, refused, token.split(".")[2]):
            assert secret not in str(target.seen) and secret not in str(other.forms), "it was sent on"
            assert secret not in shown and secret not in files, "it was shown or stored"
        assert exchanged and not any(each in shown or each in files for each in exchanged)

"""A server asks during a call: the terminal shows a form, an address or a request for a model, and answers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.gateway.bridge_lab import pipe_entry
from toolway.errors import ProtocolError

pytestmark = pytest.mark.user_trial("28")
ASKING = {"command": sys.executable, "args": [str(Path(__file__).with_name("asking_server.py"))], "era": "legacy"}
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
SERVERS = {"asking": ASKING, "modern": FAKE, "legacy": {**FAKE, "args": [*FAKE["args"], "--era", "legacy"]}}
SERVERS |= {f"logs-{era}": pipe_entry(era) for era in ("modern", "legacy")}


class Place:
    """A home with a file of servers; `words` are added to each command."""

    def __init__(self, home, *words):
        self.home, self.words = home, words
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLWAY_", "XDG_"))},
            "HOME": str(home),
            "BROWSER": str(home / "browser"),
        }

    def call(self, *words):
        return Terminal("call", *words, *self.words, env=self.env, cwd=self.home)

    def run(self, *words):
        command = [sys.executable, "-m", "toolway.cli", *words, *self.words]
        return subprocess.run(
            command, env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )


def home_of(folder):
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": SERVERS}))
    (folder / "browser").write_text(f'#!/bin/sh\necho "$1" > {folder}/new && mv {folder}/new {folder}/opened\n')
    (folder / "browser").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """The words that name a gateway for the same servers."""
    place = Place(home_of(tmp_path_factory.mktemp("gateway")))
    process = subprocess.Popen(
        [sys.executable, "-m", "toolway.cli", "serve", "-c", "mcp.json", "--port", "0", "--json", "--drain-delay", "0"],
        cwd=place.home,
        env=place.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        url = json.loads("".join(iter(lines.readline, "}\n")) + "}")["url"].removesuffix("/mcp")
        token = place.run("keys", "local-token").stdout.strip()
        yield ("-g", url, "--token", token)
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(params=["file", pytest.param("gateway", marks=pytest.mark.slow)])
def place(request, tmp_path):
    return place_for(request, tmp_path)


@pytest.fixture(params=["file", "gateway"])
def any_place(request, tmp_path):
    return place_for(request, tmp_path)


def place_for(request, tmp_path):
    words = ("-c", "mcp.json") if request.param == "file" else request.getfixturevalue("gateway")
    return Place(home_of(tmp_path), *words)


def opened(place):
    """The address that the browser got. It starts in the background."""
    end = time.monotonic() + 60
    while not (place.home / "opened").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return (place.home / "opened").read_text()


def shown_result(terminal, code=0):
    assert terminal.close() == code, terminal.text
    return terminal.text


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_warnings_of_server_are_printed_during_a_call(any_place, era):
    ended = any_place.run("call", f"logs-{era}.log")
    assert ended.returncode == 0 and ended.stdout == "error\n"  # what it was asked to log
    assert f'logs-{era} error: {{"words":"error","nothing":null}}\n' in ended.stderr
    assert " info: " not in ended.stderr
    quiet = any_place.run("call", f"logs-{era}.log", "-q")
    assert (quiet.stdout, quiet.stderr) == ("error\n", "")


def test_form_is_filled_field_by_field(place):
    terminal = place.call("asking.book")
    terminal.expect("asking asks: Your booking")
    terminal.expect("Answer? y = answer, n = decline, c = cancel [y]: ")
    terminal.type("")
    terminal.expect("As in your passport")
    terminal.expect("Full name: ")
    terminal.type("")
    terminal.expect("it is required")
    terminal.type("Bo")
    terminal.expect("at least 3 characters")
    terminal.type("Bob")
    terminal.expect("nights (whole number) [2]: ")
    terminal.type("fifteen")
    terminal.expect("type a whole number")
    terminal.type("15")
    terminal.expect("expected at most 14")
    terminal.type("")
    terminal.expect("budget (number): ")
    terminal.type("99.5")
    terminal.expect("late (y or n) [n]: ")
    terminal.type("yes")
    terminal.expect("1) Single\n  2) Double\nroom (a number): ")
    terminal.type("2")
    terminal.expect("meals (numbers with commas, optional): ")
    terminal.type("1, dinner")
    terminal.expect("pin (password): ")
    terminal.type("s3cr3t-pin")
    terminal.expect("note (optional): ")
    terminal.type("")
    terminal.expect("Send? y = send it to asking, e = edit, n = decline, c = cancel [y]: ")
    assert "s3cr3t-pin" not in terminal.text
    terminal.type("")
    _, begin, rest = shown_result(terminal).rpartition('{"action"')
    assert json.loads(begin + rest) == {
        "action": "accept",
        "content": {
            "name": "Bob",
            "nights": 2,
            "budget": 99.5,
            "late": True,
            "room": "d",
            "meals": ["breakfast", "dinner"],
            "pin": "s3cr3t-pin",
        },
    }


def test_form_can_be_declined_or_canceled(place):
    for letter, action in (("n", "decline"), ("c", "cancel")):
        terminal = place.call("asking.book")
        terminal.expect("[y]: ")
        terminal.type(letter)
        assert f'{{"action":"{action}"}}' in shown_result(terminal)
    terminal = place.call("asking.book")
    terminal.expect("[y]: ")
    terminal.type("y")
    terminal.expect("Full name: ")
    terminal.press("d")
    assert '{"action":"cancel"}' in shown_result(terminal)


def test_form_without_fields_needs_explicit_answer(place):
    terminal = place.call("asking.confirm")
    terminal.expect("Accept? y = accept, n = decline, c = cancel: ")
    terminal.type("")
    terminal.expect("Accept? ")
    terminal.type("y")
    assert shown_result(terminal).splitlines()[-1] == "accept"


def test_url_is_opened_only_after_yes(place):
    terminal = place.call("asking.visit")
    terminal.expect("asking asks: Log in to your bank")
    terminal.expect("https://bank.example/login?id=7")
    terminal.expect("Open this address? y = open it in your browser, n = decline, c = cancel: ")
    assert not (place.home / "opened").exists()
    terminal.type("n")
    assert shown_result(terminal).splitlines()[-1] == "decline"
    assert not (place.home / "opened").exists()
    terminal = place.call("asking.visit")
    terminal.expect("Open this address? ")
    terminal.type("y")
    assert shown_result(terminal).splitlines()[-1] == "accept"
    assert opened(place) == "https://bank.example/login?id=7\n"


def test_url_required_before_call_is_offered(place):
    terminal = place.call("asking.files")
    terminal.expect("asking asks: Let us read your files")
    terminal.expect("Open this address? ")
    terminal.type("y")
    assert "finish in the browser window that opened, then call again" in shown_result(terminal, code=1)
    assert opened(place) == "https://files.example/allow\n"
    result = place.run("call", "asking.files")
    assert "asking asked: Let us read your files (https://files.example/allow)" in " ".join(result.stderr.split())


def test_sampling_request_can_be_answered_or_refused(place):
    terminal = place.call("asking.think")
    terminal.expect("asking asks for a model's answer:\nsystem: Be brief.\nuser: What is the capital of Norway?")
    terminal.expect("Answer it yourself? y = type the answer, n = refuse [n]: ")
    terminal.type("y")
    terminal.expect("> ")
    terminal.type("Oslo")
    terminal.expect("> ")
    terminal.type("")
    assert '["human", "Oslo"]' in shown_result(terminal)
    terminal = place.call("asking.think")
    terminal.expect("[n]: ")
    terminal.type("")
    assert "the user rejected the sampling request" in shown_result(terminal, code=1)


@pytest.mark.parametrize("server", ["modern", "legacy"])
def test_both_eras_can_ask_several_rounds(any_place, server):
    terminal = any_place.call(f"{server}.elicit", "rounds:=2")
    for number in (1, 2):
        terminal.expect(f"{server} asks: Round {number}: your name?")
        terminal.expect("[y]: ")
        terminal.type("y")
        terminal.expect("name: ")
        terminal.type(f"Bo{number}")
        terminal.expect("Send? ")
        terminal.type("y")
    answers = shown_result(terminal).rpartition("Send?")[2]
    assert "Bo1" in answers and "Bo2" in answers


def test_question_without_terminal_is_in_the_error(place):
    result = place.run("call", "modern.elicit")
    assert result.returncode != 0
    assert "modern asked: Round 1: your name? (name)" in " ".join(result.stderr.split())
    assert "call it in a terminal to answer" in result.stderr and "Hub" not in result.stderr
    document = json.loads(place.run("call", "modern.elicit", "--json").stdout)["error"]
    assert document["code"] == "E-NO-ANSWER" and "Round 1: your name?" in document["detail"]
    result = place.run("call", "asking.book")
    assert result.returncode != 0 and "asking asked: Your booking (name, nights" in " ".join(result.stderr.split())
    result = place.run("call", "modern.sample")
    assert "asked for a model's answer to: user: Say something." in " ".join(result.stderr.split())


@pytest.mark.user_trial("20")
@pytest.mark.anyio
async def test_unanswered_request_hint_fits_the_caller():
    from toolway.callbacks import FunctionCallbacks
    from toolway.hub.hub import Hub
    from toolway.types import Call, CallbackError

    def refuse(server, params):
        raise CallbackError(-32600, "nobody is here")

    async with Hub({"fake": FAKE}, elicitation_callback=refuse) as hub:
        with pytest.raises(ProtocolError) as caught:
            await hub.call_tool("fake.elicit")
        assert "elicitation_callback" in caught.value.hint
        params = {"name": "elicit", "arguments": {}}
        call = Call("fake.elicit", "tools/call", params, callbacks=FunctionCallbacks(refuse, None, None))
        with pytest.raises(ProtocolError) as caught:
            await hub._core.calls.request(call)  # as the gateway calls, for a client
        assert "Hub" not in caught.value.hint and "client" in caught.value.hint

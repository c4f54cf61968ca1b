"""Log lines: for a person, for a program, and without what nobody should read there."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import program
from toolway.config.spec import Server
from toolway.errors import Certainty
from toolway.events import CallFinished, Connected, Lost, StateChanged
from toolway.telemetry.log import LONGEST, Form, LogLines, mask_of, write_lines
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def failed(**facts: Any) -> CallFinished:
    facts = {"what": "s.t took longer than 1 s", "evidence": "the server had not answered", **facts}
    return CallFinished(
        "s", "tools/call", "s.t", "E-TIMEOUT", "unknown", 1.0, "c1", "t", certainty=Certainty.C2, attempts=2, **facts
    )


def lines(form: Form, *, verbose: bool = False, secret: str = "", **facts: Any) -> str:
    stream = io.StringIO()
    write_lines(
        form,
        verbose=verbose,
        stream=stream,
        mask=mask_of(lambda: {"s": Server(url="http://x.example", headers={"X": secret})}),
    )
    log = LogLines()
    log.on_call(failed(**facts))
    log.on_call(CallFinished("s", "tools/call", "s.t", "ok", "yes", 0.01, "c2", "t"))
    log.on_event(StateChanged("s", "starting", "failed", "its command was not found"))
    log.on_event(Connected("s", "modern", "2026-07-28", 7))
    log.on_event(Lost("s", "the process ended"))
    return stream.getvalue()


def test_a_line_of_json_has_all_that_leads_further() -> None:
    found = [json.loads(line) for line in lines("json", trace="f" * 32, span="e" * 16).splitlines()]
    call, state, lost = found
    assert call["event"] == "call failed" and call["level"] == "warning" and call["logger"] == "toolway.calls"
    assert (call["call"], call["server"], call["tool"], call["outcome"]) == ("c1", "s", "t", "E-TIMEOUT")
    assert (call["ms"], call["attempts"], call["executed"]) == (1000.0, 2, "unknown")
    assert (call["trace_id"], call["span_id"]) == ("f" * 32, "e" * 16)
    assert call["why"] == "s.t took longer than 1 s: the server had not answered"
    assert call["timestamp"].endswith("Z")
    assert (state["event"], state["why"]) == ("s is failed", "its command was not found")
    assert (lost["event"], lost["why"]) == ("s was lost", "the process ended")


def test_a_person_reads_the_same_in_one_line_each() -> None:
    text = lines("text")
    assert "\x1b" not in text  # it is no terminal
    first = text.splitlines()[0]
    assert "call failed" in first and "outcome=E-TIMEOUT" in first and "server=s" in first
    assert len(text.splitlines()) == 3


def test_every_call_is_a_line_where_that_is_wanted() -> None:
    found = [json.loads(line) for line in lines("json", verbose=True).splitlines()]
    assert [line["event"] for line in found] == ["call failed", "call", "s is failed", "s is connected", "s was lost"]


def test_a_server_that_is_tried_again_and_again_is_told_of_once_and_when_it_is_given_up() -> None:
    stream = io.StringIO()
    write_lines("json", verbose=False, stream=stream, mask=mask_of(dict))
    log = LogLines()
    for new in ("backing_off", "starting", "backing_off", "failed", "starting", "ready", "backing_off"):
        log.on_event(StateChanged("s", "", new, "why"))
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["s is backing off", "s is failed", "s is backing off"]


def test_no_secret_is_in_any_line() -> None:
    secret = "canary-8f0a6c1d2b"
    for form in ("text", "json"):
        text = lines(form, secret=secret, what=f"it said {secret}", evidence=f"Bearer {secret}")
        assert secret not in text and "***" in text


def test_what_a_server_wrote_cannot_pretend_to_be_a_line_of_ours() -> None:
    text = lines("text", evidence="x\n2026-01-01 [info] all is well\x1b[2J" + "y" * 5000)
    assert len(text.splitlines()) == 3 and "\x1b" not in text
    assert len(text.splitlines()[0]) < LONGEST + 500


def test_lines_of_other_libraries_look_the_same() -> None:
    stream = io.StringIO()
    write_lines("json", verbose=False, stream=stream, mask=mask_of(dict))
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("somebody.else").exception("it broke: %s", "badly")
    found = json.loads(stream.getvalue())
    assert (found["event"], found["logger"]) == ("it broke: badly", "somebody.else")
    assert "ValueError: x" in found["exception"]


async def test_a_gateway_writes_why_a_server_does_not_start(tmp_path: Path) -> None:
    servers = {"good": fake_server()}
    async with program(tmp_path, servers) as gateway:
        gateway.write({**servers, "broken": {"command": "no-such-command-here"}})
        await gateway.until_logged("broken is backing off")
        await gateway.stop()
    found = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    (first, *_) = [line for line in found if line.get("server") == "broken"]
    assert "no-such-command-here" in first["why"]

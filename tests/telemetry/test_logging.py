"""Log lines: text, JSON, and masked secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import program
from toolway.config.masking import create_mask
from toolway.config.schema import Server
from toolway.errors import Certainty
from toolway.events import CallFinished, Connected, Disconnected, StateChanged
from toolway.telemetry.logging import MAX_VALUE_CHARS, LogFormat, LogSink, configure_logging
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
    facts = {"message": "s.t timed out after 1 s", "detail": "the server had not answered", **facts}
    return CallFinished(
        "s",
        "tools/call",
        "s.t",
        "E-TIMEOUT",
        "unknown",
        1.0,
        "c1",
        "t",
        certainty=Certainty.UNKNOWN,
        attempts=2,
        **facts,
    )


def lines(form: LogFormat, *, verbose: bool = False, secret: str = "", **facts: Any) -> str:
    stream = io.StringIO()
    configure_logging(
        form,
        verbose=verbose,
        stream=stream,
        mask=create_mask(lambda: {"s": Server(url="http://x.example", headers={"X": secret})}),
    )
    log = LogSink()
    log.on_call(failed(**facts))
    log.on_call(CallFinished("s", "tools/call", "s.t", "ok", "yes", 0.01, "c2", "t"))
    log.on_event(StateChanged("s", "starting", "failed", "its command was not found", state="down"))
    log.on_event(Connected("s", "modern", "2026-07-28", 7))
    log.on_event(Disconnected("s", "the process ended"))
    return stream.getvalue()


def test_json_line_has_all_fields_of_a_call() -> None:
    found = [json.loads(line) for line in lines("json", trace_id="f" * 32, span_id="e" * 16).splitlines()]
    call, state, lost = found
    assert call["event"] == "call may have run" and call["level"] == "warning" and call["logger"] == "toolway.calls"
    assert (call["call"], call["server"], call["tool"], call["outcome"]) == ("c1", "s", "t", "unknown")
    assert call["code"] == "E-TIMEOUT"
    assert (call["ms"], call["attempts"], call["executed"]) == (1000.0, 2, "unknown")
    assert (call["trace_id"], call["span_id"]) == ("f" * 32, "e" * 16)
    assert call["why"] == "s.t timed out after 1 s: the server had not answered"
    assert call["timestamp"].endswith("Z")
    assert (state["event"], state["why"]) == ("s is down", "its command was not found")
    assert (lost["event"], lost["why"]) == ("s disconnected", "the process ended")


def test_text_line_has_the_same_content() -> None:
    text = lines("text")
    assert "\x1b" not in text  # it is not a terminal
    first = text.splitlines()[0]
    assert (
        "call may have run" in first
        and "outcome=unknown" in first
        and "code=E-TIMEOUT" in first
        and "server=s" in first
    )
    assert len(text.splitlines()) == 3


def test_verbose_logs_every_call() -> None:
    found = [json.loads(line) for line in lines("json", verbose=True).splitlines()]
    assert [line["event"] for line in found] == [
        "call may have run",
        "call",
        "s is down",
        "s is connected",
        "s disconnected",
    ]


def test_repeated_failures_warn_once_until_given_up() -> None:
    stream = io.StringIO()
    configure_logging("json", verbose=False, stream=stream, mask=create_mask(dict))
    log = LogSink()
    for new in ("backing_off", "starting", "backing_off", "failed", "starting", "ready", "backing_off"):
        state = {"backing_off": "down", "failed": "down", "starting": "down"}.get(new, new)
        log.on_event(StateChanged("s", "", new, "why", state=state))
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["s is down", "s is down", "s is down"]


@pytest.mark.attack("held-72")
def test_no_secret_is_in_any_line() -> None:
    secret = "canary-8f0a6c1d2b"
    for form in ("text", "json"):
        text = lines(form, secret=secret, message=f"it said {secret}", detail=f"Bearer {secret}")
        assert secret not in text and "***" in text


@pytest.mark.attack("held-73")
def test_server_text_cannot_forge_a_log_line() -> None:
    text = lines("text", detail="x\n2026-01-01 [info] all is well\x1b[2J" + "y" * 5000)
    assert len(text.splitlines()) == 3 and "\x1b" not in text
    assert len(text.splitlines()[0]) < MAX_VALUE_CHARS + 500


def test_lines_of_other_libraries_have_the_same_format() -> None:
    stream = io.StringIO()
    configure_logging("json", verbose=False, stream=stream, mask=create_mask(dict))
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("somebody.else").exception("it broke: %s", "badly")
    found = json.loads(stream.getvalue())
    assert (found["event"], found["logger"]) == ("it broke: badly", "somebody.else")
    assert "ValueError: x" in found["exception"]


async def test_gateway_logs_why_a_server_does_not_start(tmp_path: Path) -> None:
    servers = {"good": fake_server()}
    async with program(tmp_path, servers) as gateway:
        gateway.write({**servers, "broken": {"command": "no-such-command-here"}})
        await gateway.until_logged("broken is down")
        await gateway.stop()
    found = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    (first, *_) = [line for line in found if line.get("server") == "broken"]
    assert "no-such-command-here" in first["why"]

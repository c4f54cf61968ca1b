"""The lines that a gateway logs by itself: which servers are up after the start, and a reload."""

from __future__ import annotations

import io
import logging

import pytest

from toolway.serve.process import MAX_NAMED_SERVERS, summarize_servers
from toolway.telemetry.logging import configure_logging
from toolway.upstream.state import StateWord
from toolway.upstream.status import ServerStatus


def status(server: str, state: StateWord, last_error: str = "") -> ServerStatus:
    return ServerStatus(server=server, transport="stdio", state=state, last_error=last_error or None)


def test_startup_line_counts_ready_and_names_down_servers() -> None:
    found = [
        status("a", "ready"),
        status("b", "idle"),
        status("c", "down", "command not found"),
        status("d", "disabled"),
    ]
    assert summarize_servers(found) == (
        "1 of 3 servers ready; 1 start at their first call; down: c (command not found)"
    )
    assert summarize_servers([]) == ""
    many = summarize_servers(status(f"s{n}", "down", "x") for n in range(MAX_NAMED_SERVERS + 2))
    assert many.endswith(" and 2 more")


@pytest.mark.parametrize(("quiet", "shown"), [(False, True), (True, False)])
def test_gateway_log_is_shown_unless_quiet(quiet: bool, shown: bool) -> None:
    root, gateway = logging.getLogger(), logging.getLogger("toolway.gateway")
    before = root.handlers[:], root.level, gateway.level
    stream = io.StringIO()
    try:
        configure_logging("text", verbose=False, quiet=quiet, stream=stream, mask=str)
        gateway.info("configuration reloaded")
        logging.getLogger("toolway.hub").info("a detail")
    finally:
        root.handlers[:], root.level, gateway.level = before
    assert ("configuration reloaded" in stream.getvalue()) is shown
    assert "a detail" not in stream.getvalue()

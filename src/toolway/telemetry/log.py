"""Log lines that a person reads in a terminal and a program reads as JSON, by structlog. Loaded by a gateway.

Every line goes through one mask: what was a secret of this process, of an entry or of our environment is in none.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

from toolway.config.mask import masker
from toolway.config.spec import Server
from toolway.events import CallFinished, Connected, Event, LoopResumed, LoopStalled, Lost, StateChanged

Form = Literal["text", "json"]
LONGEST: Final = 2000  # characters of one value
_BAD: Final = frozenset({"failed", "backing_off"})
_log = logging.getLogger("toolway.calls")
_servers_log = logging.getLogger("toolway.servers")


def write_lines(form: Form, *, verbose: bool, stream: TextIO | None = None, mask: Callable[[str], str]) -> None:
    """From now on, whatever is logged in this process is written so."""
    stream = stream if stream is not None else sys.stderr
    first: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper("iso" if form == "json" else "%Y-%m-%d %H:%M:%S", utc=form == "json"),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.format_exc_info,
        _Masked(mask),
    ]
    last: Any = structlog.processors.JSONRenderer()
    if form == "text":
        last = structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=first, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    for noisy in ("opentelemetry", "urllib3", "requests", "httpx2", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Masked:
    """No secret, and nothing too long, in any value of any line; what a server wrote is one line."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in list(event.items()):
            if not key.startswith("_") and not isinstance(value, bool | int | float | type(None)):
                event[key] = self._plain(key, value if isinstance(value, str) else str(value))
        return event

    def _plain(self, key: str, value: str) -> str:
        text = self._mask(value)
        if key != "exception":  # a stack is many lines, and ours
            text = "".join(each if each.isprintable() else " " for each in text)
        return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def mask_of(servers: Callable[[], Mapping[str, Server]]) -> Callable[[str], str]:
    """A mask that knows the servers there are now; made anew when they change, not for every line."""
    known: list[Any] = [(), masker(())]

    def mask(text: str) -> str:
        now = tuple(servers().values())
        if len(now) != len(known[0]) or any(one is not other for one, other in zip(now, known[0], strict=True)):
            known[:] = [now, masker(now)]
        return str(known[1](text))

    return mask


class LogLines:
    """A sink of facts: what happens to servers, and every call that failed; the others too, where that is wanted."""

    wants_steps = False

    def __init__(self, *, calls: bool = True) -> None:
        self.wants_calls = calls
        self._in_trouble: set[str] = set()  # servers of which that was said

    def on_call(self, fact: CallFinished) -> None:
        if not self.wants_calls:
            return
        failed = fact.outcome not in ("ok", "tool_error", "cancelled")
        level = logging.WARNING if failed and fact.outcome != "E-NOT-FOUND" else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "call failed" if failed else "call", extra=_of_call(fact))

    def on_event(self, fact: Event) -> None:
        level, words = logging.INFO, ""
        facts: dict[str, Any] = {}
        if isinstance(fact, StateChanged):
            level = self._level(fact)
            words, facts = f"{fact.server} is {fact.new.replace('_', ' ')}", {"why": fact.why}
        elif isinstance(fact, Connected):
            words, facts = f"{fact.server} is connected", {"protocol": fact.protocol, "pid": fact.pid}
        elif isinstance(fact, Lost):
            level, words, facts = logging.WARNING, f"{fact.server} was lost", {"why": fact.why}
        elif isinstance(fact, LoopStalled):
            return  # the watchdog writes by itself, from its own thread: the loop stands still
        elif isinstance(fact, LoopResumed):
            words, facts = "the event loop turns again", {"seconds": round(fact.seconds, 1)}
        if words and _servers_log.isEnabledFor(level):
            _servers_log.log(level, words, extra={"server": fact.server, **facts})

    def _level(self, fact: StateChanged) -> int:
        """A server that is tried again and again is told of once, and when it is given up."""
        if fact.new in ("ready", "stopped"):
            self._in_trouble.discard(fact.server)
        if fact.new not in _BAD or (fact.server in self._in_trouble and fact.new != "failed"):
            return logging.INFO
        self._in_trouble.add(fact.server)
        return logging.WARNING


def _of_call(fact: CallFinished) -> dict[str, Any]:
    """What a line says about a call. Its trace is named as OpenTelemetry's logs name it, so that one leads to the
    other."""
    found: dict[str, Any] = {
        "call": fact.id,
        "server": fact.server,
        "tool": fact.tool,
        "outcome": fact.outcome,
        "ms": round(fact.seconds * 1000, 1),
        "attempts": fact.attempts,
    }
    if fact.method != "tools/call":
        found["method"] = fact.method
    if fact.caller:
        found["caller"] = fact.caller
    if fact.what:
        found |= {"executed": fact.executed, "why": f"{fact.what}: {fact.evidence}" if fact.evidence else fact.what}
    if fact.trace:
        found["trace_id"] = fact.trace
    if fact.span:
        found["span_id"] = fact.span
    return found

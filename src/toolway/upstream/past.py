"""What has become of an upstream so far: how it last ended, when it is tried again, and what a person is told of it.

Pure: the time is handed in. The supervisor asks, and does the waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolway.config.spec import Server
from toolway.model import Era
from toolway.upstream.causes import likely_cause
from toolway.upstream.link import MOVED, Fault, LinkFacts, Loss, RpcError
from toolway.upstream.restarts import Restarts
from toolway.upstream.session import Session
from toolway.upstream.state import Event, State
from toolway.upstream.status import Status, sentence

USUAL_LIFE: Final = 5.0  # seconds after which the end of a link that ends now and then is no failure


class Past:
    __slots__ = ("failure", "last_facts", "restarts", "retry_at", "since", "start_failures")

    def __init__(self, server: Server, dice: Callable[[], float], now: float) -> None:
        self.restarts = Restarts(server.restart, dice)
        self.failure: Loss | None = None
        self.last_facts = LinkFacts()  # of the link before
        self.start_failures = 0  # since the last start that went well
        self.retry_at = 0.0
        self.since = now  # the state is what it is

    def ended(self, loss: Loss, ready_for: float, now: float) -> Event:
        """The link ended after `ready_for` seconds, 0 for a start that failed."""
        self.failure = loss
        if loss.usual and ready_for >= USUAL_LIFE:
            self.restarts.forgive()
        wait, gave_up = self.restarts.after_end(now, ready_for)
        self.retry_at = now + wait
        return Event.GAVE_UP if gave_up else Event.ENDED

    def is_hopeless(self, patience: float, now: float) -> bool:
        """Whether it is in vain to wait for the next try, for somebody who would wait for so many seconds."""
        return self.start_failures > 0 or self.retry_at - now > patience

    def status(
        self, name: str, server: Server, state: State, session: Session | None, hint: Era | None, now: float
    ) -> Status:
        """What a person is told. `hint` is the era that the server spoke when it was last heard."""
        agreed = session.agreement if session is not None else None
        version = agreed.version if agreed else None
        facts = session.link.facts() if session is not None else self.last_facts
        waiting = state in (State.BACKING_OFF, State.FAILED)
        wait = max(0.0, self.retry_at - now) if waiting else None
        failure, last = self.failure, self.last_facts.stderr
        cause, fix = self._cause(server, facts)
        return Status(
            server=name,
            transport=facts.transport or server.transport,
            state=state.value,
            era=agreed.era if agreed else hint,
            protocol=version,
            pid=facts.pid if session is not None else None,
            restarts=self.restarts.total,
            in_flight=session.in_flight if session is not None else 0,
            last_error=failure.reason if failure else None,
            stderr=facts.stderr or (last if failure else ""),
            next_retry=wait,
            since=now - self.since,
            why=sentence(state, name, version, failure, cause, last, wait, facts.transport),
            fix=fix,
        )

    def _cause(self, server: Server, facts: LinkFacts) -> tuple[str, str]:
        """Why it failed, where the failure does not say it all, and what to do about it."""
        failure = self.failure
        if failure is None or failure.fix:
            return "", failure.fix if failure else ""
        stderr = self.last_facts.stderr or facts.stderr
        found = likely_cause(server.command or server.url or "", failure.exit_code, stderr, failure.code)
        return found if found is not None else ("", "")


def why_no_start(exc: Exception, limit: float) -> Loss:
    """The reason of a start that failed with a `Fault` or an `RpcError`, or took longer than `limit`."""
    if isinstance(exc, TimeoutError):
        fix = f'give it more time: "startTimeout": "{2 * limit:g}s"'
        return Loss(f"no answer within {limit:g} s", "E-START-TIMEOUT", fix=fix)
    if isinstance(exc, RpcError):
        return Loss(f"the server refused to start a session: error {exc.code}, {exc.message}", "E-START-REFUSED")
    assert isinstance(exc, Fault)
    if exc.code == MOVED:
        return Loss(exc.reason, exc.code, moved=True)
    return Loss(exc.reason, exc.code, fix=exc.fix)

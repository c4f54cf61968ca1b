"""The middleware chain of a call: four kinds of stages, with their order defined in one place.

    CallEntry        find out what is called, by whom and until when; answers nothing
      resolve          find server and tool, and the effect class of the call
      deadline         one time budget for everything below
      user_middleware  middleware of the program (`Hub(middleware=…)`), which may change arguments
      idempotency      claim the idempotency key, or find the earlier call that used it
    Gates            refuse a call that its caller may not make, or may not get the result of
      redaction        remove secrets from results that were stored
      arguments        reject arguments that do not match the tool's schema
      approval         approvals and data-flow labels; absent without a gateway
    Answerers        answer a call instead of its server
      replay           return the outcome of the earlier call with the same idempotency key
      cache            return a cached result if allowed
      single_flight    send identical concurrent reads once
    Attempts         make the call
      audit            log calls that change something before they are sent; absent without an audit log
      retry            retry if that is safe
      circuit_breaker  sees every attempt; rejects calls to what keeps failing
      rate_limit       wait for the rate limits of server and tool
      concurrency      acquire a slot, held only while an attempt runs

All gates come before all answerers. So whatever answers in place of a server, a caller only gets the answer if it may
make the call now. A new stage that answers belongs in `Answerers`, and cannot come before a gate. The gateway's own
gates (access, policies, rates, budgets) are passed before a call enters the chain.

Each middleware is a function of `(call, next)`, so it can be read, tested, and removed on its own. If it does not
apply to a call, it returns the coroutine of `next` directly, because wrapping it in another would slow down every
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolway.types import CallHandler, Middleware


class CallEntry(NamedTuple):
    """Stages that find out what is called. Only the program's own middleware may answer here."""

    resolve: Middleware
    deadline: Middleware
    user_middleware: Sequence[Middleware]
    idempotency: Middleware


class Gates(NamedTuple):
    """Stages that reject calls or change stored results. None of them answers in place of a server."""

    redaction: Middleware
    arguments: Middleware
    approval: Middleware | None = None


class Answerers(NamedTuple):
    """Stages that may answer a call without making it."""

    replay: Middleware
    cache: Middleware
    single_flight: Middleware


class Attempts(NamedTuple):
    """Stages that make the call."""

    audit: Middleware | None
    retry: Middleware
    circuit_breaker: Middleware
    rate_limit: Middleware
    concurrency: Middleware


class Chain(NamedTuple):
    """All stages of a call, by kind. The kinds run in this order."""

    entry: CallEntry
    gates: Gates
    answerers: Answerers
    attempts: Attempts

    @property
    def stages(self) -> tuple[Middleware, ...]:
        """Return the middleware in order, outermost first."""
        entry, gates, answerers, attempts = self
        before = (entry.resolve, entry.deadline, *entry.user_middleware, entry.idempotency)
        return (*before, *(each for each in (*gates, *answerers, *attempts) if each is not None))


def compose(middlewares: Sequence[Middleware], handler: CallHandler) -> CallHandler:
    """Compose `middlewares`, outermost first, into one handler that ends with `handler`."""
    for middleware in reversed(middlewares):
        handler = _bind(middleware, handler)
    return handler


def _bind(middleware: Middleware, next: CallHandler) -> CallHandler:
    # Not async: a coroutine that only awaits another one would cost every call once per middleware.
    return lambda call: middleware(call, next)

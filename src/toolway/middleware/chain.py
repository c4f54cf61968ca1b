"""Middleware chain of a call: the order of the middleware, defined once.

    resolve          find server and tool, and the effect class of the call
    deadline         one time budget for everything below
    user_middleware  middleware of the program (`Hub(middleware=…)`), which may change arguments
    idempotency      execute calls with the same idempotency key once
    cache            return a cached result if allowed
    single_flight    send identical concurrent reads once
    arguments        reject arguments that do not match the tool's schema
    approval         wait for the approval of a person, if a rule asks for it; absent without a gateway
    audit            log calls that change something before they are sent; absent without an audit log
    retry            retry if that is safe
    circuit_breaker  sees every attempt; rejects calls to what keeps failing
    rate_limit       wait for the rate limits of server and tool
    concurrency      acquire a slot, held only while an attempt runs

Each middleware is a function of `(call, next)`, so it can be read, tested and removed alone. One that does not apply
to a call returns the coroutine of `next` directly: a wrapping coroutine would cost every call.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolway.types import CallHandler, Middleware


def build_chain(
    *,
    resolve: Middleware,
    deadline: Middleware,
    user_middleware: Sequence[Middleware] = (),
    idempotency: Middleware,
    cache: Middleware,
    single_flight: Middleware,
    arguments: Middleware,
    approval: Middleware | None = None,
    audit: Middleware | None = None,
    retry: Middleware,
    circuit_breaker: Middleware,
    rate_limit: Middleware,
    concurrency: Middleware,
) -> tuple[Middleware, ...]:
    """Return the middleware of the call chain in order, outermost first."""
    asked = tuple(each for each in (approval, audit) if each is not None)
    before = (resolve, deadline, *user_middleware, idempotency, cache, single_flight, arguments)
    return (*before, *asked, retry, circuit_breaker, rate_limit, concurrency)


def compose(middlewares: Sequence[Middleware], handler: CallHandler) -> CallHandler:
    """Compose `middlewares`, outermost first, into one handler that ends with `handler`."""
    for middleware in reversed(middlewares):
        handler = _bind(middleware, handler)
    return handler


def _bind(middleware: Middleware, next: CallHandler) -> CallHandler:
    # Not async: a coroutine that only awaits another one would cost every call once per middleware.
    return lambda call: middleware(call, next)

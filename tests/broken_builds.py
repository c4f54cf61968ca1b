"""Gateways that are broken on purpose, so tests can show that they would notice.

Each build is a function that changes the program. Tests in one process give it `monkeypatch.setattr`; as a program,
`python -m tests.broken_builds BUILD serve …` is a `toolway` that has the fault.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

SWEEP: Final = 1.0  # seconds after which something else takes care of a call

Patch = Callable[[Any, str, Any], None]


def sends_again(patch: Patch) -> None:
    """A call that takes long is taken over by code that does not know that it was sent, and sends it."""
    from toolway.upstream.session import Session

    original = Session.request

    async def request(session: Any, method: str, *facts: Any, **more: Any) -> Any:
        first = asyncio.ensure_future(original(session, method, *facts, **more))
        if method != "tools/call" or await _ends(first, SWEEP):
            return await first
        first.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await original(session, method, *facts, **more)

    patch(Session, "request", request)


def denies_at_shutdown(patch: Patch) -> None:
    """A call that takes long is taken over as if it were new, and new calls are rejected during the shutdown."""
    from toolway.gateway.gateway import Gateway
    from toolway.gateway.mcp.dispatcher import RequestDispatcher
    from toolway.gateway.mcp.errors import SHUTTING_DOWN, RpcFailure
    from toolway.gateway.router import NOT_EXECUTED

    draining: set[int] = set()
    drain, forward = Gateway.drain, RequestDispatcher._forward

    async def drains(gateway: Any, *facts: Any) -> None:
        draining.add(id(gateway._dispatcher))
        await drain(gateway, *facts)

    async def forwards(dispatcher: Any, *facts: Any, **more: Any) -> Any:
        sent = asyncio.ensure_future(forward(dispatcher, *facts, **more))
        while not await _ends(sent, SWEEP):
            if id(dispatcher) in draining:
                sent.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise RpcFailure(SHUTTING_DOWN, "the gateway is shutting down", {**NOT_EXECUTED})
        return await sent

    patch(Gateway, "drain", drains)
    patch(RequestDispatcher, "_forward", forwards)


def resume_sends(patch: Patch) -> None:
    """The pipeline that takes a flight over begins its own attempt instead of waiting for the one in flight."""
    from toolway.hub.flight import Flights

    async def resume(flights: Any, call: Any, sent: Any, plan: Any, began: float) -> Any:
        plan.limiter.release(plan.caller)
        return await flights._observe(call, flights._attempt, began)

    patch(Flights, "resume", resume)


def resume_rejects(patch: Patch) -> None:
    """The pipeline that takes a flight over begins where new calls are rejected during the shutdown."""
    from toolway.gateway.gateway import Gateway
    from toolway.gateway.mcp.errors import SHUTTING_DOWN, RpcFailure
    from toolway.gateway.mcp.modern import ModernEndpoint
    from toolway.gateway.mcp.responses import ResponseWriter
    from toolway.gateway.router import NOT_EXECUTED

    draining: set[int] = set()
    drain, original = Gateway.drain, ModernEndpoint.resume

    async def drains(gateway: Any, *facts: Any) -> None:
        draining.add(id(gateway._modern))
        await drain(gateway, *facts)

    async def resume(endpoint: Any, exchange: Any, context: Any, taken: Any) -> None:
        if id(endpoint) not in draining:
            await original(endpoint, exchange, context, taken)
            return
        refusal = RpcFailure(SHUTTING_DOWN, "the gateway is shutting down", {**NOT_EXECUTED})
        ResponseWriter(exchange, context.request_id).send_error(refusal)
        await taken.resume()

    patch(Gateway, "drain", drains)
    patch(ModernEndpoint, "resume", resume)


def resume_forgets(patch: Patch) -> None:
    """The state of a call that takes a flight over does not learn that it was sent."""
    from toolway.upstream.transport import RequestExchange

    def attach(exchange: Any, state: Any) -> None:
        exchange.listener, exchange.call_state, exchange.is_sent = None, state, False
        exchange._begin(state)

    patch(RequestExchange, "attach", attach)


def keeps_notes_of_a_similar_head(patch: Patch) -> None:
    """A head inherits the authentication of the head before it, if as many headers have equal values."""
    from toolway.http.server_connection import ServerConnection

    original, last = ServerConnection._request, dict[Any, Any]()

    def is_similar(one: Any, other: Any) -> bool:
        if (one.method, one.path, one.query) != (other.method, other.path, other.query):
            return False
        if len(one.headers) != len(other.headers) or one.repeated_headers or other.repeated_headers:
            return False
        return all(other.headers.get(name) == value for name, value in one.headers.items() if name != "content-length")

    def request(connection: Any, body: bytes) -> Any:
        found, before = original(connection, body), last.get(connection)
        if before is not None and is_similar(found, before):
            return before.with_body(body, connection._peer)
        if found.method == "POST" and not found.repeated_headers:
            last[connection] = found
        return found

    patch(ServerConnection, "_request", request)


def keeps_revoked_tokens(patch: Patch) -> None:
    """A head that was authenticated stays so when keys change."""
    from toolway.gateway.authenticator import Authenticator

    patch(Authenticator, "_increment_version", lambda authenticator: None)


def keeps_expired_tokens(patch: Patch) -> None:
    """A head that was authenticated stays so when its token expires."""
    from toolway.gateway.authenticator import ProvenIdentity
    from toolway.parts.identity.provider import IdentityProvider

    original = IdentityProvider.authenticate

    def authenticate(provider: Any, token: str) -> Any:
        return ProvenIdentity(original(provider, token).principal)

    patch(IdentityProvider, "authenticate", authenticate)


def keeps_views(patch: Patch) -> None:
    """A view of an endpoint stays as it is when toolsets change."""
    from toolway.gateway.router import Router

    original = Router.view_for

    def view_for(router: Any, principal: Any, endpoint: str) -> Any:
        known = router.__dict__.setdefault("kept_views", {})
        key = (principal.id, endpoint)
        if key not in known:
            known[key] = original(router, principal, endpoint)
        return known[key]

    patch(Router, "view_for", view_for)
    patch(Router, "refresh_views", lambda router: None)


def threads_end(patch: Patch) -> None:
    """A thread ends as by a fault of the interpreter, when a file `end-thread` with its name is in the state folder."""
    import ctypes
    import os
    import threading
    import time
    from pathlib import Path

    order = Path(os.environ["TOOLWAY_STATE"]) / "end-thread"

    def watch() -> None:
        while not order.exists() or not (name := order.read_text()):
            time.sleep(0.02)
        for thread in threading.enumerate():
            if thread.name == name:
                exception = ctypes.py_object(SystemExit)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)
        order.unlink()

    threading.Thread(target=watch, name="end-thread", daemon=True).start()


async def _ends(task: asyncio.Future[Any], within: float) -> bool:
    try:
        done, _ = await asyncio.wait([task], timeout=within)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    return bool(done)


BUILDS: Final[dict[str, Callable[[Patch], None]]] = {
    build.__name__: build
    for build in (
        *(sends_again, denies_at_shutdown, resume_sends, resume_rejects, resume_forgets, threads_end),
        *(keeps_notes_of_a_similar_head, keeps_revoked_tokens, keeps_expired_tokens, keeps_views),
    )
}


def main() -> None:
    from toolway.cli import main as toolway

    BUILDS[sys.argv.pop(1)](setattr)
    toolway()


if __name__ == "__main__":
    main()

"""Middleware from the program that uses a `Hub`: hooks before and after a call.

Such a hook runs within the deadline and before the arguments are checked, so it may change the arguments. It cannot
change the tool, which has already been resolved and allowed. If the hook fails, the call ends with a `CallError` that
names the hook and says whether the call ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toolway.errors import CallError
from toolway.types import Call, CallHandler, CallResult, Certainty, Middleware, result_type


def user_middleware(middlewares: Iterable[Middleware], on_error: Callable[[CallError], None]) -> tuple[Middleware, ...]:
    """Wrap each of the program's `middlewares` to turn an exception in it into a `CallError`; return them.

    `on_error` gets a call's error before any middleware does, and may change its messages. Raises `TypeError` if a
    middleware is not callable.
    """
    return tuple(_guard(middleware, on_error) for middleware in middlewares)


def _guard(hook: Middleware, on_error: Callable[[CallError], None]) -> Middleware:
    if not callable(hook):
        raise TypeError(f"middleware must be a function of (call, next), not {hook!r}")
    name = str(getattr(hook, "__name__", type(hook).__name__))

    async def middleware(call: Call, next: CallHandler) -> CallResult:
        has_result = False

        async def checked_next(changed: Call) -> CallResult:
            nonlocal has_result
            if changed is not call and not _has_same_target(call, changed):
                raise _failed(name, call, Certainty.NOT_SENT, "it passed on another tool than the one called")
            try:
                result = await next(changed)
            except CallError as exc:
                on_error(exc)
                raise
            has_result = True
            return result

        try:
            result = await hook(call, checked_next)
        except CallError:
            raise
        except Exception as exc:
            certainty = Certainty.EXECUTED if has_result else call.state.overall_certainty()
            raise _failed(name, call, certainty, f"{type(exc).__name__}: {exc}") from exc
        if not isinstance(result, result_type(call.method)):
            certainty = Certainty.EXECUTED if has_result else call.state.overall_certainty()
            raise _failed(name, call, certainty, f"it returned {type(result).__name__} instead of a result")
        return result

    return middleware


def _has_same_target(call: Call, changed: Call) -> bool:
    return (
        isinstance(changed, Call)
        and (changed.server, changed.name, changed.method) == (call.server, call.name, call.method)
        and changed.params.get("name") == call.params.get("name")
        and changed.params.get("uri") == call.params.get("uri")
        and changed.policy is call.policy
        and changed.state is call.state
    )


def _failed(name: str, call: Call, certainty: Certainty, detail: str) -> CallError:
    error = CallError(
        f"middleware {name} failed during a call to {call.server}.{call.name}",
        server=call.server,
        tool=call.name,
        certainty=certainty,
        attempts=call.state.attempts,
        detail=detail[:500],
        hint=f"fix {name}, which was passed to Hub(middleware=…)",
        code="E-MIDDLEWARE",
    )
    error.retryable = False
    return error

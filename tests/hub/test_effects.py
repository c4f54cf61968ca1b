"""Effects: the operator first, then the method, then the server's hints, and unsafe where nothing is known."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

from toolway.hub.call_policy import method_effect, tool_effect
from toolway.types import Effect

READ, IDEMPOTENT, UNSAFE = Effect.READ, Effect.IDEMPOTENT, Effect.UNSAFE
HTTP = {"GET": READ, "HEAD": READ, "OPTIONS": READ, "PUT": IDEMPOTENT, "DELETE": IDEMPOTENT, "POST": UNSAFE}
READ_HINT, IDEMPOTENT_HINT = {"readOnlyHint": True}, {"idempotentHint": True}


def test_tool_without_information_is_unsafe() -> None:
    assert tool_effect() is UNSAFE
    assert tool_effect(annotations={}) is UNSAFE
    assert tool_effect(annotations={"title": "get everything, read only", "destructiveHint": False}) is UNSAFE


@pytest.mark.parametrize(
    ("setting", "method", "hints"), list(product(Effect, [None, *HTTP], [None, READ_HINT, IDEMPOTENT_HINT]))
)
def test_configured_effect_always_wins(setting, method, hints) -> None:
    assert tool_effect(setting=setting, http_method=method, annotations=hints) is setting


@pytest.mark.parametrize(("method", "effect"), [*HTTP.items(), ("PATCH", UNSAFE), ("get", READ), ("BREW", UNSAFE)])
def test_http_method_overrides_hints(method, effect) -> None:
    for hints in (None, READ_HINT, IDEMPOTENT_HINT):
        assert tool_effect(http_method=method, annotations=hints) is effect


@pytest.mark.parametrize(
    ("hints", "effect"),
    [
        (READ_HINT, READ),
        (IDEMPOTENT_HINT, IDEMPOTENT),
        (READ_HINT | IDEMPOTENT_HINT, READ),
        ({"readOnlyHint": False, "idempotentHint": True}, IDEMPOTENT),
        ({"readOnlyHint": False, "idempotentHint": False}, UNSAFE),
    ],
)
def test_hints_set_the_effect(hints, effect) -> None:
    assert tool_effect(annotations=hints) is effect


@pytest.mark.parametrize("almost", ["true", 1, 1.0, [True], {"x": 1}, None, False])
def test_only_true_counts_as_a_hint(almost) -> None:
    assert tool_effect(annotations={"readOnlyHint": almost, "idempotentHint": almost}) is UNSAFE


@pytest.mark.parametrize(("repeatable", "honored"), [(True, False), (False, True), (True, True)])
def test_idempotency_lifts_only_unsafe_effect(repeatable, honored) -> None:
    again = partial(tool_effect, idempotent=repeatable, honours_key=honored)
    assert again() is IDEMPOTENT
    assert again(setting=UNSAFE) is IDEMPOTENT
    assert again(http_method="POST") is IDEMPOTENT
    assert again(setting=READ) is READ
    assert again(annotations=IDEMPOTENT_HINT) is IDEMPOTENT


@pytest.mark.parametrize(
    "method",
    [
        *("server/discover", "ping", "tools/list", "prompts/list", "prompts/get", "completion/complete", "tasks/get"),
        *("resources/list", "resources/templates/list", "resources/read"),
    ],
)
def test_read_methods_are_reads(method) -> None:
    assert method_effect(method) is READ


def test_task_cancel_is_idempotent() -> None:
    assert method_effect("tasks/cancel") is IDEMPOTENT


@pytest.mark.parametrize("method", ["tools/call", "tasks/update", "Tools/List", "", "x/list", "subscriptions/listen"])
def test_every_other_method_is_unsafe(method) -> None:
    assert method_effect(method) is UNSAFE

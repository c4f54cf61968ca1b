"""Decisions of the planner: order, retries, crashes at every point, questions, undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.workflows.harness import Simulation
from toolway.types import Json
from toolway.workflows.journal import Entry
from toolway.workflows.step_planner import CallAction, entry_for

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")


def pay(name: str, **keys: Any) -> Json:
    return {"name": name, "tool": "s.pay", "params": {"id": name}, **keys}


def outcome(action: CallAction, state: Any, executed: str, now: float = 0.0) -> Entry:
    body = {"code": "E-X", "message": "x", "executed": executed}
    return replace(entry_for(action, 1, now), state=state, ended=now, body=body)


def test_steps_run_in_order_and_pass_data_on() -> None:
    run = Simulation(
        {
            "steps": [
                {"name": "a", "tool": "s.read", "params": {"n": "${inputs.n + 1}"}, "assign": "first"},
                {"name": "b", "if": "first.n > 1", "tool": "s.put", "params": {"n": "${first.n * 10}"}},
                {"name": "c", "if": "first.n > 100", "tool": "s.pay"},
                {"name": "d", "set": {"total": "${steps.a.data.n + steps.b.data.n}"}},
            ],
            "outputs": {"total": "${total}", "skipped": "${steps.c.state}"},
        },
        {"n": 1},
    )
    assert run.run().output == {"total": 22, "skipped": "skipped"}
    assert not run.effects


CRASH_DEFINITIONS = {
    "sequence": [pay("a"), {"name": "r", "tool": "s.read"}, pay("b"), {"name": "p", "tool": "s.put"}],
    "keyed": [{"name": "k", "tool": "s.pay_once", "key": "honored", "params": {"id": "k"}}, pay("b")],
    "verified": [
        pay(
            "a",
            on_unknown={"verify": {"tool": "s.list", "params": {"id": "a"}, "happened": "reply.data.items.size() > 0"}},
        )
    ],
    "foreach": [
        {
            "name": "f",
            "foreach": "['x', 'y', 'z']",
            "at_once": 2,
            "steps": [{"name": "p", "tool": "s.pay", "params": {"id": "${item}"}}],
        }
    ],
    "parallel": [{"name": "par", "parallel": {"l": [pay("a")], "r": [pay("b"), pay("c")]}}],
    "switch": [{"name": "sw", "switch": [{"if": "inputs.x", "steps": [pay("a")]}, {"steps": [pay("b")]}]}],
    "repeat": [
        {"name": "rep", "repeat": {"until": "index >= 2", "every": 1, "steps": [{"name": "p", "tool": "s.put"}]}},
        pay("a"),
    ],
    "waits": [pay("a"), {"name": "w", "wait": 60}, {"name": "ok", "approve": "continue?"}, pay("b")],
    "caught": [{"name": "x", "tool": "s.fail", "catch": [{"steps": [pay("a")]}]}, pay("b")],
}


@pytest.mark.parametrize("name", CRASH_DEFINITIONS)
def test_crash_at_any_point_repeats_no_unsafe_call(name: str) -> None:
    body = {"steps": CRASH_DEFINITIONS[name]}
    plain = Simulation(body, {"x": True})
    whole = plain.run()
    assert whole.state == "done"
    points = 0

    def count(point: str) -> bool:
        nonlocal points
        points += 1
        return False

    Simulation(body, {"x": True}).run(count)
    for crash_at in range(points):
        left = crash_at

        def crash(point: str) -> bool:
            nonlocal left
            left -= 1
            return left == -1

        run = Simulation(body, {"x": True})
        ended = run.run(crash)
        assert ended.state == "done", (name, crash_at, ended.error)
        assert run.effects == plain.effects, (name, crash_at)


_LEAF = st.sampled_from(["s.read", "s.put", "s.pay", "s.pay_once"])
_NESTED = st.one_of(
    st.lists(_LEAF, min_size=1, max_size=3).map(lambda tools: ("foreach", tools)),
    st.lists(_LEAF, min_size=2, max_size=3).map(lambda tools: ("parallel", tools)),
)
_STEP: st.SearchStrategy[Any] = st.one_of(_LEAF, _NESTED)


def build(shapes: list[Any]) -> Json:
    number = 0

    def leaf(tool: str) -> Json:
        nonlocal number
        number += 1
        step: Json = {"name": f"n{number}", "tool": tool}
        return {**step, "key": "honored"} if tool == "s.pay_once" else step

    steps: list[Json] = []
    for shape in shapes:
        if isinstance(shape, str):
            steps.append(leaf(shape))
            continue
        kind, tools = shape
        number += 1
        if kind == "foreach":
            inner = [leaf(tool) for tool in tools]
            steps.append({"name": f"n{number}f", "foreach": "[1, 2, 3]", "at_once": 2, "steps": inner})
        else:
            steps.append(
                {"name": f"n{number}p", "parallel": {f"b{index}": [leaf(tool)] for index, tool in enumerate(tools)}}
            )
    return {"steps": steps}


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, min_size=1, max_size=5), st.lists(st.booleans(), max_size=40), st.integers(0, 5))
def test_random_crashes_leave_each_effect_exactly_once(shapes: list[Any], crashes: list[bool], rare: int) -> None:
    body = build(shapes)
    plain = Simulation(body)
    plain.run()
    pattern = iter(crashes * (rare + 1))
    run = Simulation(body)
    assert run.run(lambda point: next(pattern, False)).state == "done"
    assert run.effects == plain.effects


def test_unknown_unsafe_call_asks_and_is_not_resent() -> None:
    run = Simulation({"steps": [pay("a")]})
    crashed = iter([False, False, False, True])
    run.run(lambda point: next(crashed, False))
    assert run.asked == ["a"]
    assert run.calls["a"] == 1


def test_call_is_resent_after_answer_that_it_did_not_happen() -> None:
    run = Simulation({"steps": [pay("a")]})
    crashed = iter([False, False, True])  # before the call was sent
    assert run.run(lambda point: next(crashed, False)).state == "done"
    assert run.asked == ["a"]
    assert run.effects == {"a": 1}


def test_verify_waits_until_call_can_no_longer_run() -> None:
    run = Simulation({"steps": CRASH_DEFINITIONS["verified"]})
    crashed = iter([False, False, False, True])
    assert run.run(lambda point: next(crashed, False)).state == "done"
    assert not run.asked
    assert run.now >= 15.0  # 10 s timeout of the call and 5 s `after`
    assert run.effects == {"a": 1}


def verified(**keys: Any) -> Json:
    verify = {"tool": "s.list", "params": {"id": "a"}, "happened": "reply.data.items.size() > 0", **keys}
    return pay("a", on_unknown={"verify": verify})


def crash_after_the_intent() -> Callable[[str], bool]:
    crashed = iter([False, True])
    return lambda point: next(crashed, False)


def test_not_found_after_crash_counts_only_for_local_server() -> None:
    local, remote = Simulation({"steps": [verified()]}), Simulation({"steps": [verified()]})
    remote.is_local = False
    for run, asked in ((local, []), (remote, ["a"])):
        assert run.run(crash_after_the_intent()).state == "done"
        assert run.asked == asked


class SlowServer:
    """Server that executes the first call `late` seconds after its caller gave up."""

    def __init__(self, run: Simulation, late: float, code: str = "E-TIMEOUT") -> None:
        self.run, self.late, self.code = run, late, code
        self.due: float | None = None
        run.reply = self.reply

    def reply(self, action: CallAction) -> Entry | None:
        if self.due is not None and self.run.now >= self.due:
            self.due = None
            self.run.effects["a"] += 1
        if action.tool != "s.pay" or self.run.calls["a"] > 1:
            return None
        self.run.now += 10.0  # the time limit
        self.due = self.run.now + self.late
        found = outcome(action, "unknown", "unknown", self.run.now)
        return replace(found, body={**found.body, "code": self.code}, local=False)


def test_not_found_after_timeout_asks_while_server_may_still_run() -> None:
    run = Simulation({"steps": [verified()]})
    SlowServer(run, late=60.0)
    run.run(steps=20)
    assert run.calls["a/verify1"] == 1
    assert run.asked == ["a"]


def test_not_found_after_timeout_counts_after_the_waiting_time() -> None:
    run = Simulation({"steps": [verified(after=30)]})
    SlowServer(run, late=29.0)
    assert run.run().state == "done"
    assert run.effects == {"a": 1}
    assert not run.asked


def test_after_is_at_least_the_call_timeout() -> None:
    run = Simulation({"steps": [verified(after=0.2)]})
    SlowServer(run, late=9.0)
    assert run.run().state == "done"
    assert run.effects == {"a": 1}


def test_not_found_counts_if_server_exited_during_call() -> None:
    run = Simulation({"steps": [verified()]})
    SlowServer(run, late=1e9, code="E-STDIO-EXIT")
    assert run.run().state == "done"
    assert run.effects == {"a": 1}
    assert not run.asked


def test_read_before_server_exit_does_not_count_after_it() -> None:
    run = Simulation({"steps": [verified()]})
    SlowServer(run, late=60.0)

    def crash(point: str) -> bool:  # in the first plan after the read
        return run.calls["a/verify1"] == 1 and run.life == 1 and point == "before commit"

    run.run(crash, steps=20)
    assert run.life == 2
    assert run.asked == ["a"]


def test_unknown_outcome_needs_a_handler_that_names_it() -> None:
    step = pay("a", on_unknown="fail", catch=[{"steps": [pay("b")]}, {"unknown": True, "steps": [pay("c")]}])
    run = Simulation({"steps": [step]})
    run.reply = lambda action: outcome(action, "unknown", "unknown") if action.path == "a" else None
    assert run.run().state == "done"
    assert run.effects == {"c": 1}


def test_calls_that_did_not_run_are_retried_with_backoff() -> None:
    attempts: list[float] = []
    run = Simulation({"steps": [pay("a", retry={"tries": 4, "wait": 30, "factor": 2})]})

    def reply(action: CallAction) -> Entry:
        attempts.append(run.now)
        return outcome(action, "not_executed", "no", run.now)

    run.reply = reply
    assert run.run().state == "failed"
    assert attempts == [0.0, 30.0, 90.0, 210.0]


def needs_approval(action: CallAction, now: float) -> Entry:
    body = {"code": "E-APPROVAL", "message": "s.pay needs approval", "executed": "no"}
    return replace(entry_for(action, 1, now), state="not_executed", ended=now, body=body)


def test_call_waiting_for_approval_counts_as_one_attempt() -> None:
    attempts: list[tuple[float, int]] = []
    run = Simulation({"steps": [pay("a"), pay("b")]})

    def reply(action: CallAction) -> Entry | None:
        attempts.append((run.now, action.attempt))
        return needs_approval(action, run.now) if len(attempts) < 4 else None

    run.reply = reply
    assert run.run().state == "done"
    assert attempts == [(0.0, 1), (10.0, 1), (20.0, 1), (30.0, 1), (30.0, 1)]
    assert run.effects == {"a": 1, "b": 1}


def test_call_not_approved_within_a_day_fails() -> None:
    run = Simulation({"steps": [pay("a", retry={"tries": 1})]})
    run.reply = lambda action: needs_approval(action, run.now)
    ended = run.run(steps=30_000)
    assert (ended.state, (ended.error or {})["code"]) == ("failed", "E-APPROVAL")
    assert run.now == 24 * 3600.0 and not run.effects


def test_reported_tool_failure_is_retried_only_if_configured() -> None:
    once = Simulation({"steps": [{"name": "x", "tool": "s.fail", "retry": {"tries": 5}}]})
    assert once.run().state == "failed"
    assert once.calls["x"] == 1
    keys = {"retry": {"tries": 3, "on": ["answer"]}, "repeatable": True}
    again = Simulation({"steps": [{"name": "x", "tool": "s.fail", **keys}]})
    again.run()
    assert again.calls["x"] == 3


def test_failed_run_is_undone_in_reverse_order() -> None:
    undone: list[str] = []
    run = Simulation(
        {
            "on_failure": "undo",
            "steps": [
                pay("a", undo={"tool": "s.put", "params": {"of": "${steps.a.data.id}"}}),
                pay("b", undo={"tool": "s.put", "params": {"of": "${steps.b.data.id}"}}),
                {"name": "x", "tool": "s.fail"},
            ],
        }
    )

    def reply(action: CallAction) -> None:
        if action.tool == "s.put":
            undone.append(action.args["of"])

    run.reply = reply
    assert run.run().state == "undone"
    assert undone == ["b", "a"]


def test_undo_waits_until_unknown_step_is_settled() -> None:
    run = Simulation(
        {
            "on_failure": "undo",
            "steps": [pay("a", undo={"tool": "s.put", "params": {}}), pay("b", on_unknown="fail")],
        }
    )
    run.reply = lambda action: outcome(action, "unknown", "unknown") if action.path == "b" else None
    assert run.run().state == "undone"
    assert run.asked == ["b"]
    assert run.calls["b"] == 1


def test_denied_approval_fails_run_before_the_call() -> None:
    run = Simulation({"steps": [{"name": "ok", "approve": {"title": "Pay?"}}, pay("a")]})
    run._message("answer", "ok", {"yes": False, "note": "too much"})
    ended = run.run()
    assert ended.error is not None
    assert ended.error["code"] == "E-WORKFLOW-DENIED"
    assert not run.effects


def test_unanswered_question_expires() -> None:
    run = Simulation({"steps": [{"name": "ok", "approve": {"title": "Pay?", "within": "1d"}}, pay("a")]})
    run._answer = lambda decision: setattr(run, "now", decision.due or run.now)  # type: ignore[method-assign]
    assert (run.run().error or {})["code"] == "E-WORKFLOW-EXPIRED"


def test_cancel_starts_nothing_new() -> None:
    run = Simulation({"steps": [pay("a"), pay("b")]})
    run._message("cancel", "", {"undo": False})
    ended = run.run()
    assert ended.state == "cancelled"
    assert not run.effects


def test_cancel_during_undo_lets_undo_finish() -> None:
    steps = [pay(name, undo={"tool": "s.pay", "params": {"id": f"not {name}"}}) for name in ("a", "b")]
    run = Simulation({"on_failure": "undo", "steps": [*steps, {"name": "x", "tool": "s.fail"}]})

    def reply(action: CallAction) -> None:
        if action.path == "undo/b":
            run._message("cancel", "", {"undo": False})

    run.reply = reply
    assert run.run().state == "undone"
    assert run.effects == {"a": 1, "b": 1, "not b": 1, "not a": 1}


@pytest.mark.parametrize(
    ("code", "waits", "state"),
    [
        ("E-NOT-FOUND", False, "stuck"),
        ("E-TOOL-ON-HOLD", False, "stuck"),
        ("E-ARGUMENTS", True, "stuck"),
        ("E-ARGUMENTS", False, "failed"),
    ],
)
def test_changed_tool_makes_run_stuck_until_resumed(code: str, waits: bool, state: str) -> None:
    run = Simulation({"steps": [*([{"name": "w", "wait": "1h"}] if waits else []), pay("a")]})
    error = {"code": code, "message": "gone", "executed": "no", "retryable": False}

    def reply(action: CallAction) -> Entry:
        return replace(outcome(action, "not_executed", "no", run.now), body=error)

    run.reply = reply
    assert run.run().state == state
    run.record = replace(run.record, state="ready")
    run._message("resume", "", {})
    assert run.run().state == state
    assert run.calls["a"] == 2  # each time that a user resumes it
    run.record = replace(run.record, state="ready")
    run.reply = None
    run._message("resume", "", {})
    assert run.run().state == "done"
    assert run.effects == {"a": 1}


def test_run_over_its_timeout_fails() -> None:
    run = Simulation({"timeout": "1h", "steps": [{"name": "w", "wait": "2h"}, pay("a")]})
    ended = run.run()
    assert (ended.error or {})["code"] == "E-WORKFLOW-TIMEOUT"
    assert run.now == 3600.0
    assert not run.effects


def test_stricter_recorded_effect_applies() -> None:
    run = Simulation({"steps": [{"name": "a", "tool": "s.put"}]})
    run.journal["a", 1] = Entry(path="a", state="begun", tool="s.put", effect="unsafe", args={}, life=0)
    run.run()
    assert run.asked == ["a"]


def test_unsupported_key_does_not_make_call_repeatable() -> None:
    run = Simulation({"steps": CRASH_DEFINITIONS["keyed"]})
    run.meta_key = None
    crashed = iter([False, False, False, True])
    assert run.run(lambda point: next(crashed, False)).state == "done"
    assert run.asked == ["k"]
    assert run.effects == {"k": 1, "b": 1}


def test_large_foreach_takes_linear_time() -> None:
    items = {"items": list(range(3000))}
    step = {"name": "f", "foreach": "inputs.items", "at_once": 50, "steps": [{"name": "p", "tool": "s.put"}]}
    run = Simulation({"steps": [step], "outputs": "${size(steps.f.data)}"}, items)
    assert run.run(steps=10_000).output == 3000

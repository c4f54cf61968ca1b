"""Actions that a user can take on a run, each with a description of its effect."""

from __future__ import annotations

from collections.abc import Sequence

from toolway.types import Json
from toolway.workflows.journal import FINAL_STATES, RESUMABLE_STATES, Entry, RunRecord


def possible_actions(record: RunRecord, entries: Sequence[Entry]) -> list[Json]:
    """Return the actions that an administrator can take on a run now.

    Each has `action`, `step`, `label`, the `body` of its request, and a text about its `effect`.
    """
    if record.state in RESUMABLE_STATES:
        effect = "The run continues where it stopped, if the cause is gone. Finished steps are not called again."
        return [_action("resume", "", "Resume the run", {}, effect)]
    if record.state in FINAL_STATES:
        return []
    found: list[Json] = []
    for question in record.asks:
        step, title = question["path"], question["title"]
        if question["kind"] == "approve":
            found += [
                _action("approve", step, f"Approve: {title}", {"yes": True}, "The run continues with the next step."),
                _action("approve", step, f"Deny: {title}", {"yes": False}, "The step fails, and nothing is called."),
            ]
        elif question["kind"] == "ask":
            text = "The data is stored as the result of the step, and the run continues."
            found.append({**_action("answer", step, f"Answer: {title}", {}, text), "form": question.get("form")})
        else:
            tool = next((each.tool for each in reversed(entries) if each.path == step), "the tool")
            yes = f"The run continues as if {tool} had returned the data you enter. {tool} is not called again."
            no = f"{tool} is called now, with the same arguments. If it ran before, it runs twice."
            found += [
                _action("settle", step, f"{tool} ran", {"happened": True}, yes),
                _action("settle", step, f"{tool} did not run", {"happened": False}, no),
            ]
    text = "Nothing new is called. A call in flight finishes; finished steps stay as they are."
    undo = "Nothing new is called, and finished steps that have an undo are undone, the last one first."
    found.append(_action("cancel", "", "Cancel the run", {"undo": False}, text))
    found.append(_action("cancel", "", "Cancel the run and undo its steps", {"undo": True}, undo))
    return found


def find_effect(actions: list[Json], action: str, step: str | None, body: Json) -> str:
    """Return the description of an action's effect; "" if not exactly one action matches."""
    found = [
        str(each["effect"])
        for each in actions
        if each["action"] == action
        and step in (None, each["step"])
        and all(body.get(name) == value for name, value in each["body"].items() if name != "step")
    ]
    return found[0] if len(found) == 1 else ""


def _action(action: str, step: str, label: str, body: Json, effect: str) -> Json:
    return {"action": action, "step": step, "label": label, "body": {**body, "step": step}, "effect": effect}

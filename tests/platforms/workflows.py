"""Workflows and agents, and the processes that execute them, killed at every point."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Final

from tests.platforms.checks import check
from tests.platforms.home import TIMEOUT_S, Home
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from tests.workflows.kills import KEYED_STEPS, UNSAFE_STEPS
from toolway.testing.fake_llm import FakeLLM, ToolUse, Turn

POINTS: Final = (
    *("before create", "after create"),
    *(
        f"{when} {step} {state}"
        for step in ("u1", "v1", "u2", "v2")  # unsafe steps have two writes, others one
        for state in ("begun", "done")
        for when in ("before", "after")
    ),
    *(f"{when} {step} done" for step in ("r1", "k1", "r2", "i1", "k2") for when in ("before", "after")),
    *("before r3 done", "before run done"),
)
FLOW = """
steps:
  - {name: ok, approve: {title: "Pay ${inputs.id}?"}}
  - {name: pay, tool: s.pay, params: {id: "${inputs.id}"}}
outputs: {paid: "${steps.pay.data.id}"}
"""


def serve_effects(home: Home) -> None:
    server = {"command": sys.executable, "args": [str(SERVER_FILE), str(home.folder / "effects")]}
    home.serve_these({"s": {**server, "idempotencyMetaKey": "key"}})


@check("Workflows and agents", "a workflow asks, is approved, and continues; another is cancelled", quick=True)
def workflow(home: Home) -> str:
    serve_effects(home)
    home.write("flow.yaml", FLOW)
    home.toolway("workflow", "check", "flow.yaml")
    run = home.json("workflow", "run", "flow.yaml", "id=Ä1", code=9)["id"]
    assert [each["id"] for each in home.json("workflow", "ls")["runs"]] == [run]
    home.toolway("approvals", "approve", run)
    assert home.json("workflow", "resume", run)["output"] == {"paid": "Ä1"}
    home.toolway("workflow", "show", run)
    other = home.json("workflow", "run", "flow.yaml", "id=2", code=9)["id"]
    home.toolway("workflow", "cancel", other)
    assert [each["id"] for each in read_effects(home.folder / "effects")] == ["Ä1"]
    return "one approved and done, one cancelled"


@check("Workflows and agents", f"kill the process of workflow runs (SQLite) at {len(POINTS)} points")
def workflow_kills(home: Home) -> str:
    folder = home.folder
    for number, point in enumerate(POINTS, 1):
        words = ["-m", "tests.platforms.programs.killed_runs", str(folder), str(number), point]
        done = subprocess.run(
            [sys.executable, *words], env=home.environ, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode not in (0, 1), f"{point}: not reached: {done.stderr.decode(errors='replace')[-600:]}"
    home.run_module("tests.platforms.programs.killed_runs", str(folder), str(len(POINTS)))
    effects = Counter(each["id"] for each in read_effects(folder / "effects"))
    expected = [f"run{run}/{step}" for run in range(len(POINTS)) for step in (*UNSAFE_STEPS, *KEYED_STEPS)]
    doubled = [name for name in expected if effects[name] > 1]
    lost = [name for name in expected if not effects[name]]
    assert not doubled and not lost, f"doubled: {doubled}, lost: {lost}"
    return f"{len(POINTS)} kills, {len(expected)} unsafe effects: 0 doubled, 0 lost"


@check("Workflows and agents", "an agent (fake model) asks, is denied and approved, resumes, and is replayed")
def agent(home: Home) -> str:
    serve_effects(home)
    home.environ["OPENAI_API_KEY"] = "none"
    turns: list[Turn | str] = [
        Turn(text="I pay.", calls=[ToolUse("s__pay", {"id": "p1"}), ToolUse("s__pay", {"id": "p2"})]),
        "Paid önce.",
    ]
    with FakeLLM(turns) as llm:
        model = ("--model", "openai-chat:gpt-4o", "--base-url", llm.openai_url)
        run = home.json("agent", "run", "Pay it", *model, "--budget", "1usd,5calls", code=9)["run"]
        home.toolway("approvals", "deny", run, "not this one")
        home.toolway("agent", "resume", run, code=9)
        home.toolway("approvals", "approve", run)
        assert home.json("agent", "resume", run)["output"] == "Paid önce."
    assert [each["id"] for each in read_effects(home.folder / "effects")] == ["p2"]
    home.toolway("agent", "ls")
    home.toolway("agent", "show", run)
    assert home.json("agent", "replay", run)["same"]
    return "one call denied, one made"

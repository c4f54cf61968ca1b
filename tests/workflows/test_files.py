"""Workflow files: errors with file and line, expressions with bounded cost, the crash table, the examples."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from mcp.server.mcpserver import MCPServer

from toolway import Hub
from toolway.errors import ConfigError
from toolway.hub.call_policy import CallTerms
from toolway.types import Effect
from toolway.workflows import WorkflowEngine, Workflows
from toolway.workflows.crash_table import crash_table
from toolway.workflows.expressions import ExpressionError, Expressions
from toolway.workflows.python_workflow import load_workflow
from toolway.workflows.reader import _COMMON, _KINDS, _TOP_KEYS, read_file, read_text, read_value
from toolway.workflows.schedule import Schedule

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
EXAMPLES = Path(__file__).parents[2] / "examples" / "workflows"
SCHEMA = Path(__file__).parents[2] / "src/toolway/workflows/schema.json"


_ALIASES = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n" for number in range(1, 7)
)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("steps: []", 1, "list of steps"),
        ("steps:\n  - tool: a.b\n    parms: {}\n", 3, "did you mean params"),
        ("steps:\n  - {name: a, tool: a.b}\n  - {name: a, tool: a.b}", 3, "two steps are named a"),
        ("name: x\nname: y\nsteps: []", 2, "written twice"),
        ("steps:\n  - tool: a.b\n    if: nope > 1\n", 3, "nope"),
        ("steps:\n  - {tool: a.b, wait: 3s}", 2, "exactly one kind"),
        ("steps:\n  - {wait: soon}", 2, "duration"),
        ("steps:\n  - {tool: a.b, params: {x: '${'}}", None, "not closed"),
        ("steps: [", 2, "YAML"),
        ("toolway: workflow/9\nsteps: [{tool: a.b}]", 1, "format"),
        ("inputs: {$ref: 'http://x'}\nsteps: [{tool: a.b}]", 1, "$ref"),
        ("schedule: {every: 1h, cron: '* * * * *'}\nsteps: [{tool: a.b}]", 1, "every or cron"),
        ("schedule: {cron: '0 0 30 2 *'}\nsteps: [{tool: a.b}]", 1, "cron expression"),
        ("schedule: {cron: '61 * * * *'}\nsteps: [{tool: a.b}]", 1, "cron expression"),
        ("schedule: {cron: '* * * * *', timezone: Moon/Base}\nsteps: [{tool: a.b}]", 1, "time zone"),
        ("steps:\n  - agent: {model: a:b}", 2, "prompt"),
        ("steps:\n  - agent: {prompt: x, model: a:b, tool: s.a}", 2, "did you mean tools"),
        ("steps:\n  - agent: {prompt: x, model: a:b, budget: 3 apples}", 2, "not a valid budget limit"),
        ("steps:\n  - agent: {prompt: x, tools: [s.a]}", 2, "model"),
        ("steps:\n  - agent: {prompt: x, model: a:b, approve: some}", 2, "approve"),
        (_ALIASES, None, "too many"),
    ],
)
def test_invalid_file_is_explained_with_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(text, file="flow.yaml")
    assert words in str(caught.value)
    assert caught.value.file == "flow.yaml"
    if line is not None:
        assert caught.value.line == line


def test_cron_schedule_follows_its_time_zone() -> None:
    schedule = Schedule(cron="30 8 * * *", timezone="Europe/Berlin")
    winter = datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp()
    times = [winter := schedule.next_time(winter) for _ in range(3)]
    assert [datetime.fromtimestamp(each, UTC).hour for each in times] == [7, 6, 6]


def test_unnamed_steps_get_names() -> None:
    definition = read_value({"steps": [{"tool": "a.get-it"}, {"tool": "b.get-it"}, {"wait": 1}]})
    assert [step.name for step in definition.steps] == ["get_it", "get_it_2", "wait"]


DATA = {"inputs": {"n": 3, "list": list(range(300)), "text": "x"}, "steps": {"a": {"data": {"total": 1.5}}}}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("plain", "plain"),
        ("${inputs.n + 1}", 4),
        ("fix/${inputs.n}", "fix/3"),
        ("${steps.a.data}", {"total": 1.5}),
        ("${'a}b'}", "a}b"),
        ("${ {'k': inputs.text} }", {"k": "x"}),
        ({"deep": ["${inputs.n}", "${inputs.text}!"]}, {"deep": [3, "x!"]}),
        ("${inputs.list.filter(x, x > 297)}", [298, 299]),
        ("${inputs.text.upperAscii()}", "X"),
        ("${has(inputs.missing)}", False),
        ("${timestamp('2026-01-02T03:04:05Z')}", "2026-01-02T03:04:05+00:00"),
        ("${duration('90s')}", 90.0),
    ],
)
def test_expressions_in_templates(template: Any, value: Any) -> None:
    expressions = Expressions(frozenset(("inputs", "steps")))
    assert expressions.render(template, DATA) == value
    expressions.close()


@pytest.mark.parametrize(
    "expression",
    [
        "inputs.missing",
        "1 / 0",
        "b'bytes'",
        "inputs.list.map(x, inputs.list.map(y, inputs.list.map(z, x + y + z)))",
        "inputs.list.map(x, inputs.list.map(y, string(inputs.list) + string(inputs.list) + string(inputs.list)))",
        "(" * 500 + "1" + ")" * 500,
        "1" + " + 1" * 3000,
    ],
)
def test_failing_expression_leaves_evaluator_usable(expression: str) -> None:
    expressions = Expressions(frozenset(("inputs", "steps")))
    with pytest.raises(ExpressionError):
        expressions.evaluate(expression, DATA)
    assert expressions.evaluate("inputs.list.exists(x, x == 5)", DATA) is True
    expressions.close()


def test_oversized_expression_data_is_rejected() -> None:
    expressions = Expressions(frozenset(("inputs",)))
    with pytest.raises(ExpressionError, match="too large"):
        expressions.evaluate("size(inputs.text)", {"inputs": {"text": "x" * 300_000}})


def test_crash_table_describes_each_step() -> None:
    effects = {"shop.get_order": Effect.READ}

    def terms(name: str) -> CallTerms:
        effect = effects.get(name, Effect.UNSAFE)
        source = "annotation" if name in effects else "default"
        return CallTerms(effect, source, 70.0, "", is_local=name.startswith("bank"))

    definition = read_file(EXAMPLES / "refund.yaml")
    rows = {row.step: row for row in crash_table(definition, terms)}
    assert rows["order"].after_crash == "repeated"
    assert rows["pay"].after_crash == "checked with bank.list_refunds after 75 s, else asks you"
    assert "add after" in rows["pay"].advice
    remote = crash_table(definition, lambda name: CallTerms(Effect.UNSAFE, "default", 70.0, ""))
    assert {row.step: row for row in remote}["pay"].after_crash == (
        "checked with bank.list_refunds after 75 s, if it is not there, asks you"
    )
    assert rows["letter"].after_crash == "asks you, once per item"
    assert "verify" in rows["letter"].advice


def company() -> dict[str, MCPServer]:
    shop, bank, mail = MCPServer("shop"), MCPServer("bank"), MCPServer("mail")
    refunds: list[dict[str, Any]] = []
    letters: list[str] = []

    @shop.tool()
    def get_order(id: str) -> dict[str, Any]:
        return {"id": id, "total": 120, "lines": [{"owner": "ann"}, {"owner": "bob"}]}

    @bank.tool()
    def refund(order: str, cents: int) -> dict[str, Any]:
        refunds.append({"id": f"R{len(refunds) + 1}", "order": order, "cents": cents})
        return refunds[-1]

    @bank.tool()
    def list_refunds(order: str) -> dict[str, Any]:
        return {"items": [each for each in refunds if each["order"] == order]}

    @mail.tool()
    def send(to: str) -> str:
        letters.append(to)
        return f"{len(letters)} letters"

    return {"shop": shop, "bank": bank, "mail": mail}


@pytest.mark.parametrize("name", ["refund.yaml", "refund.py"])
@pytest.mark.anyio
async def test_refund_example_runs(tmp_path: Path, name: str) -> None:
    file = EXAMPLES / name
    async with Hub(company()) as hub, Workflows(hub, tmp_path / "runs.db") as workflows:
        workflow = load_workflow(file) if name.endswith(".py") else file
        run = await workflows.start(workflow, {"order": "A-17"}, caller="ann")
        asked = await run.wait()
        assert asked.asks[0]["title"] == "Refund 120?"
        await workflows.answer(run.id, None, {"yes": True}, by="carl", roles=("finance",))
        assert await run.result() == {"refund": "R1"}


@pytest.mark.anyio
@pytest.mark.promise("B22")
async def test_simple_workflow_form_runs() -> None:
    github = MCPServer("github")
    branches: list[str] = []

    @github.tool()
    def getIssue(owner: str, repo: str, number: int) -> dict[str, Any]:
        return {"number": number, "state": "open"}

    @github.tool()
    def createBranch(name: str) -> str:
        branches.append(name)
        return name

    workflow = json.loads((EXAMPLES / "fetch_issue.json").read_text())
    async with Hub({"github": github}) as hub:
        result = await WorkflowEngine(hub).execute(workflow, {"input": {"issue_number": 42}, "variables": {}})
    assert result["status"] == "completed"
    assert branches == ["fix/42"]
    assert result["steps"] == {"fetch_issue": "completed", "create_branch": "completed"}
    assert result["metadata"]["stepsCompleted"] == result["metadata"]["stepsTotal"] == 2


@pytest.mark.anyio
async def test_continue_on_error_runs_steps_after_a_failure() -> None:
    server = MCPServer("s")

    @server.tool()
    def ok() -> str:
        return "fine"

    @server.tool()
    def bad() -> str:
        raise ValueError("no")

    steps = [{"name": "a", "tool": "s.bad"}, {"name": "b", "tool": "s.ok"}]
    async with Hub({"s": server}) as hub:
        engine = WorkflowEngine(hub)
        stopped = await engine.execute({"steps": steps})
        went_on = await engine.execute({"steps": steps, "config": {"continueOnError": True}})
    assert (stopped["status"], stopped["steps"]) == ("failed", {"a": "failed", "b": "pending"})
    assert (went_on["status"], went_on["output"]) == ("completed", {"result": "fine"})


@pytest.mark.parametrize("name", ["refund.yaml", "fetch_issue.json"])
def test_editor_schema_accepts_valid_files(name: str) -> None:
    validator = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()))
    assert validator.is_valid(read_file(EXAMPLES / name).body)
    assert not validator.is_valid({"steps": [{"tool": "a.b", "parms": {}}]})


def test_editor_schema_has_the_same_keys_as_the_reader() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert set(schema["properties"]) == set(_TOP_KEYS)
    kinds = {each["required"][0]: set(each["properties"]) for each in schema["$defs"]["step"]["oneOf"]}
    assert kinds == {kind: {*_COMMON, kind, *keys} for kind, keys in _KINDS.items()}

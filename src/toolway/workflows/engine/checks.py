"""Checks of the inputs of workflow runs and of answers to their questions: schemas, and who may answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema_rs

from toolway.errors import ToolwayError
from toolway.types import Json
from toolway.workflows.definition import Definition
from toolway.workflows.python_workflow.decorator import PythonWorkflow


class WorkflowError(ToolwayError):
    """Raised when a run cannot be started, answered or found, or ended without a result."""

    code = "E-WORKFLOW"


def check_inputs(definition: Definition, values: Json) -> None:
    """Raise `WorkflowError` if the inputs of a run do not match the schema of its workflow."""
    if definition.inputs is None:
        return
    check_form(
        definition.inputs,
        values,
        code="E-WORKFLOW-INPUT",
        subject=f"the input of {definition.name}",
        command="run FILE",
    )


def check_parameters(workflow: PythonWorkflow, values: Json) -> None:
    try:
        workflow.bind(values)
    except TypeError as exc:
        raise WorkflowError(
            f"the inputs do not match the parameters of {workflow.name}", detail=str(exc), code="E-WORKFLOW-INPUT"
        ) from None


def check_form(
    schema: Json,
    value: Any,
    *,
    code: str = "E-WORKFLOW-ANSWER",
    subject: str = "the answer",
    command: str = "answer RUN",
) -> None:
    problems = list(jsonschema_rs.validator_for(schema).iter_errors(value))
    if problems:
        detail = "; ".join(str(each.message) for each in problems[:3])
        names = " ".join(f"{name}=…" for name in schema.get("required") or schema.get("properties") or ("name",))
        hint = f"toolway workflow {command} {names}"
        raise WorkflowError(f"{subject} does not match its schema", detail=detail[:500], hint=hint, code=code)


def may_answer(question: Json, by: str, roles: tuple[str, ...], user_of: Callable[[str], str]) -> bool:
    """Return True if a user with the name `by` and these roles may answer this question of a run."""
    try:
        check_user(question, by, roles, user_of)
    except WorkflowError:
        return False
    return True


def check_user(question: Json, by: str, roles: tuple[str, ...], user_of: Callable[[str], str]) -> None:
    """Raise `WorkflowError` if a user may not answer a question. `user_of` finds the user behind a caller id."""
    who = question.get("who") or []
    if who and by not in who and not set(roles) & set(who):
        raise WorkflowError(
            f"{by or 'this user'} may not answer {question['path']}",
            detail=f"allowed: {', '.join(who)}",
            code="E-WORKFLOW-ASKS",
        )
    if question.get("not_by") is not None and user_of(by) == user_of(question["not_by"]):
        raise WorkflowError(
            f"the starter of a run may not answer {question['path']}",
            hint="ask someone else to answer it",
            code="E-WORKFLOW-ASKS",
        )

"""`@workflow`, which turns an `async` function into a workflow, and loading workflows from a file."""

from __future__ import annotations

import inspect
import os
import runpy
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, overload

from toolway.errors import ConfigError
from toolway.telemetry.otel_attributes import StepSpan
from toolway.types import Json
from toolway.workflows.definition import (
    Definition,
)
from toolway.workflows.journal import definition_hash
from toolway.workflows.python_workflow.step_result import read_seconds

_FILE_CODE: Final = "E-WORKFLOW-FILE"


class PythonWorkflow:
    """A workflow that is a Python function, made by `@workflow`."""

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        *,
        name: str | None = None,
        timeout: str | float | None = None,
        undo_on_failure: bool = False,
        span: Callable[[str, Json], StepSpan | None] | None = None,
    ) -> None:
        """Make a workflow of a function. `span` returns the trace span of a run, from its id and its inputs."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__name__} is not an async function")
        self.function = function
        self.span = span
        self.name = name or function.__name__
        body: Json = {"python": self.name, "timeout": timeout, "undo_on_failure": undo_on_failure}
        self.definition = Definition(
            name=self.name,
            description=inspect.getdoc(function) or "",
            timeout=None if timeout is None else read_seconds("timeout", timeout),
            undo_on_failure=undo_on_failure,
            steps=(),
            body=body,
            hash=definition_hash(body),
        )

    def bind(self, inputs: Mapping[str, Any]) -> None:
        """Check the inputs of a run. Raises `TypeError` if they do not fit the parameters of the function."""
        inspect.signature(self.function).bind(None, **inputs)


@overload
def workflow(function: Callable[..., Coroutine[Any, Any, Any]], /) -> PythonWorkflow: ...


@overload
def workflow(
    *, name: str | None = None, timeout: str | float | None = None, undo_on_failure: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, Any]]], PythonWorkflow]: ...


def workflow(function: Callable[..., Coroutine[Any, Any, Any]] | None = None, /, **options: Any) -> Any:
    """Turn an `async` function into a workflow. Its first parameter is the `RunContext`.

    Args:
        function: The function; its other parameters are the inputs of a run.
        name: Name of the workflow; the name of the function if it is missing.
        timeout: Time for the whole run, in seconds or as text such as `7d`.
        undo_on_failure: Call `undo` of the finished steps, the last first, if the run fails.

    Example:
        @workflow
        async def refund(run: RunContext, order: str) -> dict:
            paid = await run.call("bank.refund", {"order": order})
            return {"refund": paid.data["id"]}
    """
    if function is not None:
        return PythonWorkflow(function)
    return lambda found: PythonWorkflow(found, **options)


def load_workflow(source: str | os.PathLike[str]) -> PythonWorkflow:
    """Return the workflow in a Python file: `refund.py` with one workflow, or `flows.py:refund`.

    The file is run. Raises `ConfigError` if it cannot be, or has no such workflow.
    """
    file, _, name = os.fspath(source).partition(".py:")
    path = Path(f"{file}.py" if name else file)
    if not path.is_file():
        raise ConfigError(f"no file {path}", hint="use a Python file, or FILE.py:NAME", code=_FILE_CODE)
    try:
        names = runpy.run_path(str(path))
    except Exception as exc:
        detail = f"{type(exc).__name__}: {exc}"
        raise ConfigError(f"cannot run the file {path}", detail=detail[:500], code=_FILE_CODE) from exc
    found = {each.name: each for each in names.values() if isinstance(each, PythonWorkflow)}
    if name in found:
        return found[name]
    if len(found) == 1 and not name:
        return next(iter(found.values()))
    raise ConfigError(
        f"{path} has {'no workflow ' + name if name else 'no single workflow'}",
        detail=f"found: {', '.join(sorted(found)) or 'none'}",
        hint=f"put @workflow before an async function; pick one with {path}:NAME",
        code=_FILE_CODE,
    )

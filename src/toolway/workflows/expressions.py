"""Expressions of workflows: CEL, compiled once, with bounded cost.

CEL (Common Expression Language) has no loops, no clock and no I/O, so the value of a condition depends only on the
journal. This is the only module that imports the CEL runtime (`pip install 'toolway[workflows]'`). An expression that
iterates over a list (`map`, `filter`, `all`, `exists`) is evaluated in a child process with limits for CPU time and
memory, because its cost depends on data that servers send.

In a template, `${…}` is an expression. If the whole text is one expression, its value keeps its type. Otherwise the
values of the expressions become parts of the text.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from toolway.errors import ToolwayError
from toolway.workflows.expression_process import ExpressionProcess

MAX_EXPRESSION_CHARS: Final = 4096
MAX_DATA_BYTES: Final = 256 * 1024  # JSON of all variables that one expression uses
MAX_TEXT_CHARS: Final = 1024 * 1024  # of a template's result
MAX_SIMPLE_CHARS: Final = 64 * 1024  # of a string that is found without the CEL runtime
_MACROS: Final = re.compile(r"\.\s*(?:map|filter|all|exists|exists_one)\s*\(")
_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NAMES: Final = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*")
_STEP_NAMES: Final = re.compile(r"\bsteps\s*\.\s*([A-Za-z_]\w*)")


class ExpressionError(ToolwayError):
    """Raised when an expression is invalid, or has no value with the data of a run."""

    code = "E-WORKFLOW-EXPRESSION"


class Expressions:
    """Evaluator of the expressions of one workflow definition.

    `variables` are the names that expressions may use. A name that is not among them is an error when the expression is
    compiled.
    """

    def __init__(self, variables: frozenset[str]) -> None:
        self._variables = variables
        self._compiled: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
        self._texts: dict[str, Callable[[Mapping[str, Any]], Any]] = {}  # templates
        self._process: ExpressionProcess | None = None
        self.has_macros = False  # some evaluations wait for the child process

    def close(self) -> None:
        """End the child process that evaluates expensive expressions, if one was started."""
        if self._process is not None:
            self._process.close()

    def compile(self, expression: str) -> None:
        """Check an expression. Raises `ExpressionError` if it is not valid CEL or uses an unknown name."""
        self._get(expression)

    def evaluate(self, expression: str, data: Mapping[str, Any]) -> Any:
        """Return the value of an expression as JSON data."""
        return self._get(expression)(data)

    def is_true(self, expression: str, data: Mapping[str, Any]) -> bool:
        """Return the value of a condition. Raises `ExpressionError` if it is neither true nor false."""
        value = self.evaluate(expression, data)
        if not isinstance(value, bool):
            raise ExpressionError(
                f"the condition {expression!r} is not true or false", detail=f"its value is {str(value)[:100]}"
            )
        return value

    def render(self, template: Any, data: Mapping[str, Any]) -> Any:
        """Return a copy of `template` in which each `${…}` expression is replaced by its value."""
        if isinstance(template, str):
            render = self._texts.get(template)
            if render is None:
                render = self._texts[template] = self._compile_text(template)
            return render(data)
        if isinstance(template, dict):
            return {key: self.render(value, data) for key, value in template.items()}
        if isinstance(template, list | tuple):
            return [self.render(value, data) for value in template]
        return template

    def _compile_text(self, text: str) -> Callable[[Mapping[str, Any]], Any]:
        parts = split_template(text)
        if len(parts) == 1 and isinstance(parts[0], _Code):
            return self._get(parts[0].source)
        pieces = [self._get(part.source) if isinstance(part, _Code) else part for part in parts]

        def render(data: Mapping[str, Any]) -> str:
            rendered = "".join(piece if isinstance(piece, str) else _to_text(piece(data)) for piece in pieces)
            if len(rendered) > MAX_TEXT_CHARS:
                raise ExpressionError("a string in the workflow is too long", detail=f"{len(rendered)} characters")
            return rendered

        return render

    def _get(self, expression: str) -> Callable[[Mapping[str, Any]], Any]:
        found = self._compiled.get(expression)
        if found is None:
            found = self._compiled[expression] = self._compile(expression)
        return found

    def _compile(self, expression: str) -> Callable[[Mapping[str, Any]], Any]:
        if len(expression) > MAX_EXPRESSION_CHARS:
            raise ExpressionError("an expression is too long", detail=f"the limit is {MAX_EXPRESSION_CHARS} characters")
        program, used, steps_used, isolated, path = _prepare(expression, self._variables)
        self.has_macros = self.has_macros or isolated

        def run(data: Mapping[str, Any]) -> Any:
            if path is not None and (found := _simple_value(data, path)) is not None:
                return found
            values = {name: data.get(name) for name in used}
            if "steps" in values and steps_used:
                steps = data.get("steps") or {}
                values["steps"] = {name: steps[name] for name in steps_used if name in steps}
            encoded = msgspec.json.encode(values)
            if len(encoded) > MAX_DATA_BYTES:
                raise ExpressionError(
                    f"the data of {expression!r} is too large", detail=f"{len(encoded)} bytes, limit {MAX_DATA_BYTES}"
                )
            if isolated:
                return self._isolated().evaluate(expression, sorted(self._variables), values)
            return to_json(program(values), expression)

        return run

    def _isolated(self) -> ExpressionProcess:
        if self._process is None:
            self._process = ExpressionProcess(_fail)
        return self._process


class _Prepared(NamedTuple):
    """Compiled expression with the variables that it uses. All runs of a workflow definition share it."""

    program: Callable[[Mapping[str, Any]], Any]
    used: frozenset[str]  # variables
    steps_used: frozenset[str]
    isolated: bool
    path: tuple[str, ...] | None  # if it is only names with dots


@lru_cache(maxsize=2048)
def _prepare(expression: str, variables: frozenset[str]) -> _Prepared:
    return _Prepared(
        _compile_cel(expression, variables),
        variables.intersection(_NAMES.findall(expression)),
        frozenset(_STEP_NAMES.findall(expression)),
        _MACROS.search(expression) is not None,
        tuple(expression.split(".")) if _PATH.fullmatch(expression) else None,
    )


def _simple_value(data: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value at `path` if it is a short string, an integer or a boolean; else None.

    Such a value does not need the CEL runtime.
    """
    value: Any = data
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool) or (type(value) is str and len(value) <= MAX_SIMPLE_CHARS):
        return value
    return value if type(value) is int and -(2**53) < value < 2**53 else None


def _fail(message: str, detail: str) -> Exception:
    return ExpressionError(message, detail=detail)


@lru_cache(maxsize=512)
def _environment(variables: frozenset[str]) -> Any:
    try:
        from cel_expr_python import cel  # type: ignore[import-untyped]
        from cel_expr_python.ext import ext_strings  # type: ignore[import-untyped]
    except ImportError as exc:
        raise ExpressionError(
            "workflows need the expression runtime",
            detail="the package cel-expr-python is not installed",
            hint="pip install 'toolway[workflows]'",
        ) from exc
    return cel.NewEnv(variables=dict.fromkeys(sorted(variables), cel.Type.DYN), extensions=[ext_strings.ExtStrings()])


def _compile_cel(expression: str, variables: frozenset[str]) -> Callable[[Mapping[str, Any]], Any]:
    environment = _environment(variables)
    try:
        program = environment.compile(expression)
    except Exception as exc:  # the runtime raises RuntimeError with its own text
        raise ExpressionError(
            f"the expression {expression!r} is invalid", detail=str(exc).replace("INVALID_ARGUMENT: ERROR: ", "")[:300]
        ) from exc

    def run(values: Mapping[str, Any]) -> Any:
        try:
            return program.eval(data=values)
        except Exception as exc:
            raise ExpressionError(f"the expression {expression!r} has no value", detail=str(exc)[:300]) from exc

    return run


def to_json(value: Any, expression: str) -> Any:
    """Convert a value of the CEL runtime to JSON data. Raises `ExpressionError` if the value is CEL's error value."""
    if value.type().name() == "ERROR":
        raise ExpressionError(f"the expression {expression!r} has no value", detail=str(value.value())[:300])
    return _plain(value.plain_value(), expression)


def _plain(value: Any, expression: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each, expression) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, expression) for each in value]
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise ExpressionError(
        f"the expression {expression!r} is not JSON data", detail=f"its type is {type(value).__name__}"
    )


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class _Code(str):
    """Source text of an expression inside a template, without its `${` and `}`."""

    __slots__ = ()

    @property
    def source(self) -> str:
        return str(self)


@lru_cache(maxsize=4096)
def split_template(text: str) -> tuple[str | _Code, ...]:
    """Split a text into plain parts and expressions. Raises `ExpressionError` if a `${` is not closed."""
    parts: list[str | _Code] = []
    position = 0
    while (start := text.find("${", position)) >= 0:
        if start > position:
            parts.append(text[position:start])
        end = _find_end(text, start + 2)
        parts.append(_Code(text[start + 2 : end].strip()))
        position = end + 1
    if position < len(text) or not parts:
        parts.append(text[position:])
    return tuple(parts)


def _find_end(text: str, position: int) -> int:
    """Return the index of the `}` that closes the expression at `position`, past inner braces and quoted strings.

    Raises `ExpressionError` if there is none.
    """
    depth, quote = 0, ""
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character == "{":
            depth += 1
        elif character == "}":
            if not depth:
                return position
            depth -= 1
        position += 1
    raise ExpressionError("an expression is not closed", detail=text[:200], hint="close it with }")


def codes_in(template: Any) -> Iterator[str]:
    """Yield the source of each `${…}` expression in a string, or in the strings of a list or dictionary."""
    if isinstance(template, str):
        yield from (part.source for part in split_template(template) if isinstance(part, _Code))
    elif isinstance(template, dict):
        for value in template.values():
            yield from codes_in(value)
    elif isinstance(template, list | tuple):
        for value in template:
            yield from codes_in(value)

"""Arguments middleware: rejects a call, before it is sent, if its arguments do not match the tool's schema.

A call that an earlier one answers (`Call.earlier`) is not checked. It must get the first call's outcome, even if the
tool's definition has changed since. The check runs before `approval`, so no one is asked about a call that will be
rejected, and before `audit`, so a rejected call has no intent record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from toolway.catalog.catalog import Tool
from toolway.errors import ArgumentViolation, InvalidArguments, invalid_arguments
from toolway.protocol.json_schema import SchemaValidator
from toolway.protocol.null_arguments import drop_nulls
from toolway.protocol.schema_violations import describe_violations
from toolway.types import Call, CallHandler, CallResult, Middleware

MAX_COMPILED: Final = 2000  # compiled schemas
NULL_HINT: Final = (
    "leave optional arguments out instead of sending null; for a client that cannot, set toolway.gateway.dropNulls"
)


def check_arguments(validator: ArgumentValidator) -> Middleware:
    """Return middleware that raises `InvalidArguments` if a call's arguments violate the tool's schema."""

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        tool: Tool | None = call.policy.tool_to_check  # attached by `resolve`
        if tool is not None and call.earlier is None:
            validator.check(call, tool)
        return next(call)

    return middleware


class ArgumentValidator:
    """Checks arguments against input schemas. Each schema is compiled on the first call to its tool.

    `ignores_null` returns True for a server that treats a null argument like a missing one.
    """

    def __init__(self, ignores_null: Callable[[str], bool] = lambda server: False) -> None:
        self._ignores_null = ignores_null
        self._compiled: dict[tuple[str, str], tuple[Tool, SchemaValidator]] = {}

    def check(self, call: Call, tool: Tool) -> None:
        """Raise `InvalidArguments` if the call's arguments violate the tool's input schema.

        Arguments that are too large to check are rejected; otherwise a caller could hide wrong arguments behind them.
        A schema that cannot be evaluated rejects nothing, and `problems` names it.
        """
        schema = self.validator(tool)
        arguments = call.params.get("arguments")
        if arguments is None:
            arguments = {}
        try:
            if schema.is_valid(arguments):
                return
        except ValueError:
            arguments = _to_json(arguments)
            if arguments is None or schema.is_valid(arguments):
                return
        if schema.is_too_large(arguments):
            raise _too_large(tool, schema.max_values)
        if self._ignores_null(tool.server):
            arguments = {name: value for name, value in arguments.items() if value is not None}
            if schema.is_valid(arguments):
                return
        violations, omitted = describe_violations(schema, arguments)
        has_odd_nulls = None in arguments.values() and schema.is_valid(drop_nulls(arguments, tool.input_schema))
        raise invalid_arguments(tool.server, tool.name, violations, omitted, NULL_HINT if has_odd_nulls else "")

    def validator(self, tool: Tool) -> SchemaValidator:
        """Return the compiled validator for a tool's input schema."""
        key = (tool.server, tool.name)
        entry = self._compiled.get(key)
        if entry is None or entry[0] is not tool:
            if len(self._compiled) >= MAX_COMPILED:
                self._compiled.clear()
            entry = self._compiled[key] = (tool, SchemaValidator(tool.input_schema))
        return entry[1]

    def problems(self, server: str) -> tuple[str, ...]:
        """Return which arguments of a server's tools cannot be checked, and why."""
        found = []
        for (owner, name), (_, validator) in self._compiled.items():
            if owner == server and validator.skip_reason:
                found.append(f"arguments of tool {name!r} are not checked: {validator.skip_reason}")
            elif owner == server and validator.dropped_patterns:
                patterns = ", ".join(map(repr, validator.dropped_patterns))[:200]
                found.append(f"patterns of tool {name!r} are not checked, because they need backtracking: {patterns}")
        return tuple(found)

    def discard(self, server: str) -> None:
        """Drop the compiled schemas of a server that was changed or removed."""
        for key in [key for key in self._compiled if key[0] == server]:
            del self._compiled[key]


def _too_large(tool: Tool, max_values: int) -> InvalidArguments:
    violation = ArgumentViolation("$", "has too many values to be checked", f"at most {max_values}")
    hint = f'send fewer values, or ask your administrator to set "validateArguments": false for {tool.server}'
    return invalid_arguments(tool.server, tool.name, (violation,), 0, hint)


def _to_json(arguments: Any) -> Any:
    """Return arguments as the JSON that the server gets (dates as strings), or None if that fails."""
    try:
        return msgspec.json.decode(msgspec.json.encode(arguments))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return None  # the transport reports that

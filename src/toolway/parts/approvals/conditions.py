"""Conditions in approval rules: CEL expressions over a call's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolway.errors import ConfigError
from toolway.parts.approvals.rules import ApproveRule

if TYPE_CHECKING:
    from toolway.workflows.expressions import Expressions


def compile_conditions(rules: Mapping[str, ApproveRule]) -> Expressions | None:
    """Compile the conditions in approval rules; None if there are none.

    Raises `ConfigError` if one is invalid.
    """
    conditions = {key: rule.when for key, rule in rules.items() if rule.when}
    if not conditions:
        return None
    from toolway.workflows.expressions import ExpressionError, Expressions

    expressions = Expressions(frozenset({"args"}))
    for key, condition in conditions.items():
        try:
            expressions.compile(condition)
        except ExpressionError as exc:
            raise ConfigError(
                f"the condition of toolway.approve.{key[:80]} cannot be used",
                detail=f"{exc.message}: {exc.detail}",
                hint=exc.hint or "use a CEL expression over args, such as args.amount > 100",
                code="E-CONFIG-KEY",
            ) from None
    return expressions

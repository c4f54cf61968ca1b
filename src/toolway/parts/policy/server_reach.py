"""Decides whether policies can permit any of a server's items, before the items are known. No I/O.

Conditions are evaluated with what is known: the caller, the server, and the type of the items. Everything else is
unknown, and so may be expressions that use it. If Cedar fails while evaluating an unknown part, the request is denied
anyway, so a server that is hidden here never has a permitted item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from toolway.parts.policy.analysis import Policy, is_in_server, may_reach_server, scope_reaches
from toolway.parts.policy.entities import ACTIONS, Subject
from toolway.types import Json

UNKNOWN: Final = object()
MAX_DEPTH: Final = 200  # of nested expressions; deeper ones are unknown


class Entity(NamedTuple):
    """An entity in a condition, or the caller."""

    type: str
    id: str


class AnyItem(NamedTuple):
    """Stands for every item of one type on a server, including items that aren't known yet."""

    type: str
    server: str


def may_include(policies: Iterable[Policy], subject: Subject, server: str) -> bool:
    """Return False if these policies cannot permit any of a server's items to a caller."""
    groups = frozenset(("Group", each) for each in subject.groups)
    chosen = [each for each in policies if scope_reaches(each.definition["principal"], "User", subject.id, groups)]
    return any(_may_permit(chosen, subject, AnyItem(type_, server)) for type_ in ACTIONS)


def _may_permit(policies: Iterable[Policy], subject: Subject, item: AnyItem) -> bool:
    is_permitted = False
    for policy in policies:
        scope = policy.definition
        if not scope_reaches(scope["action"], "Action", ACTIONS[item.type], frozenset()):
            continue
        if policy.is_permit:
            reaches = _may_reach(scope["resource"], item)
            is_permitted |= reaches and _applies(scope["conditions"], subject, item) is not False
        elif _covers(scope["resource"], item) and _applies(scope["conditions"], subject, item) is True:
            return False  # all items of the server are forbidden
    return is_permitted


def _covers(scope: Json, item: AnyItem) -> bool:
    return scope_reaches(scope, item.type, "", frozenset({("Server", item.server)}))


def _may_reach(scope: Json, item: AnyItem) -> bool:
    is_other_type = scope["op"] == "is" and scope["entity_type"] != item.type
    return not is_other_type and may_reach_server(scope, item.server)


def _applies(conditions: Iterable[Json], subject: Subject, item: AnyItem) -> Any:
    """Return True if all conditions hold for all items, False if one holds for no item, and `UNKNOWN` otherwise."""
    known = _Known(subject, item)
    found = [known.evaluate(each["body"]) for each in conditions if each["kind"] == "when"]
    found += [_negate(known.evaluate(each["body"])) for each in conditions if each["kind"] != "when"]
    return _all(found)


class _Known:
    """Evaluates expressions about a caller and a server's items."""

    def __init__(self, subject: Subject, item: AnyItem) -> None:
        self._subject = subject
        self._item = item
        self._facts: dict[tuple[str, str], Any] = {
            ("resource", "server"): item.server,
            ("principal", "id"): subject.id,
            ("principal", "kind"): subject.kind,
            ("principal", "admin"): subject.admin,
            ("context", "client"): subject.client,
            ("context", "mfa"): subject.mfa,
        }

    def evaluate(self, node: Any, depth: int = 0) -> Any:
        """Return the value of an expression in Cedar's JSON form, or `UNKNOWN` if it depends on anything unknown."""
        if depth > MAX_DEPTH or not isinstance(node, dict) or len(node) != 1:
            return UNKNOWN
        ((operator, parts),) = node.items()
        if operator == "Value":
            return _literal(parts)
        if operator == "Var":
            return self._item if parts == "resource" else self._caller if parts == "principal" else UNKNOWN
        if operator == "Set":
            return [self.evaluate(each, depth + 1) for each in parts]
        if not isinstance(parts, dict):
            return UNKNOWN
        if operator == ".":
            return self._facts.get((str(parts["left"].get("Var")), str(parts["attr"])), UNKNOWN)
        values = {name: self.evaluate(each, depth + 1) for name, each in parts.items() if isinstance(each, dict)}
        return self._combine(operator, parts, values)

    def _combine(self, operator: str, parts: Json, values: dict[str, Any]) -> Any:
        left, right = values.get("left", UNKNOWN), values.get("right", UNKNOWN)
        if operator == "&&":
            return _all((left, right))
        if operator == "||":
            return _negate(_all((_negate(left), _negate(right))))
        if operator == "!":
            return _negate(values.get("arg", UNKNOWN))
        if operator == "if-then-else":
            test = values["if"]
            return values["then"] if test is True else values["else"] if test is False else UNKNOWN
        if operator == "==":
            return self._equals(left, right)
        if operator == "!=":
            return _negate(self._equals(left, right))
        if operator == "in":
            return _any(self._is_in(left, each) for each in (right if isinstance(right, list) else [right]))
        if operator == "is" and "in" not in parts:
            return left.type == parts["entity_type"] if isinstance(left, AnyItem | Entity) else UNKNOWN
        if operator == "contains" and isinstance(left, list):
            return _any(self._equals(each, right) for each in left)
        if operator == "like" and isinstance(left, str):
            return _like(parts["pattern"], left)
        return UNKNOWN

    @property
    def _caller(self) -> Entity:
        return Entity("User", self._subject.id)

    def _equals(self, left: Any, right: Any) -> Any:
        if left is UNKNOWN or right is UNKNOWN or isinstance(left, list) or isinstance(right, list):
            return UNKNOWN
        if isinstance(left, AnyItem) or isinstance(right, AnyItem):
            other = right if isinstance(left, AnyItem) else left
            is_possible = isinstance(other, AnyItem) or (
                isinstance(other, Entity)
                and other.type == self._item.type
                and is_in_server(other.type, other.id, self._item.server)
            )
            return UNKNOWN if is_possible else False
        return type(left) is type(right) and left == right

    def _is_in(self, left: Any, right: Any) -> Any:
        if not isinstance(right, Entity):
            return UNKNOWN
        if isinstance(left, AnyItem):
            return right.id == left.server if right.type == "Server" else self._equals(left, right)
        if left == self._caller:
            return left == right or (right.type == "Group" and right.id in self._subject.groups)
        return UNKNOWN


def _literal(value: Any) -> Any:
    if isinstance(value, str | bool | int):
        return value
    entity = value.get("__entity") if isinstance(value, dict) else None
    return Entity(str(entity["type"]), str(entity["id"])) if isinstance(entity, dict) else UNKNOWN


def _negate(value: Any) -> Any:
    return not value if isinstance(value, bool) else UNKNOWN


def _all(values: Iterable[Any]) -> Any:
    found = [*values]
    if any(each is False for each in found):
        return False
    return True if all(each is True for each in found) else UNKNOWN


def _any(values: Iterable[Any]) -> Any:
    return _negate(_all([_negate(each) for each in values]))


def _like(pattern: Any, text: str) -> Any:
    if not isinstance(pattern, list):
        return UNKNOWN
    parts = [".*" if each == "Wildcard" else re.escape(each["Literal"]) for each in pattern]
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None

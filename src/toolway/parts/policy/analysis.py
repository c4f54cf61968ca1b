"""Finds the names and attributes that Cedar policies in JSON form read. No I/O.

A decision can only depend on attributes that the policies read, such as `resource.name`. So users or tools that do not
differ in those attributes share one cached decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from toolway.types import Json

_VARIABLES: Final = ("principal", "resource", "context")


class UnsupportedPolicy(ValueError):
    """Raised when a policy cannot be analyzed. The message says how to rewrite it."""


class ArgumentRead(NamedTuple):
    """A place in a call's arguments that a policy reads: `context.args.filter.kind` is `("filter", "kind")`."""

    path: tuple[str, ...]
    whole: bool  # its value is used; False if it is only tested whether there is one (`has`)


@dataclass(frozen=True)
class PolicyUse:
    """The names of entities, attributes, and arguments that one policy reads."""

    names: frozenset[tuple[str, str]]  # entities that it names: (type, id)
    facts: frozenset[str]  # attributes of `principal`, `resource` and `context`, such as `resource.name`
    arguments: frozenset[str]  # arguments of a call: names directly under `context.args`
    argument_reads: frozenset[ArgumentRead] = frozenset()

    @property
    def reads_arguments(self) -> bool:
        return "context.args" in self.facts


@dataclass(frozen=True)
class Policy:
    """One policy from a file, in Cedar's JSON form."""

    id: str  # as Cedar numbers them: policy0, policy1 …
    label: str  # its @id, or the id with its place in the file
    definition: Json
    use: PolicyUse
    line: int = 0  # where it begins in the file

    @property
    def is_permit(self) -> bool:
        return bool(self.definition["effect"] == "permit")


@dataclass(frozen=True)
class PolicySetUse:
    """The names of entities and attributes that a file's policies read, combined."""

    names: Mapping[str, frozenset[str]] = field(default_factory=dict)  # type → ids
    facts: frozenset[str] = frozenset()

    @staticmethod
    def of(policies: list[Policy]) -> PolicySetUse:
        """Return everything that at least one of these policies reads."""
        names: dict[str, set[str]] = {}
        facts: set[str] = set()
        for policy in policies:
            facts |= policy.use.facts
            for type_, id_ in policy.use.names:
                names.setdefault(type_, set()).add(id_)
        return PolicySetUse({type_: frozenset(ids) for type_, ids in names.items()}, frozenset(facts))

    def ids(self, type_: str) -> frozenset[str]:
        return self.names.get(type_, frozenset())


def analyse(definition: Json) -> PolicyUse:
    """Return the names and attributes that a policy reads.

    Raises `UnsupportedPolicy` if the policy has a form that cannot be analyzed.
    """
    names, facts, reads = set[tuple[str, str]](), set[str](), set[ArgumentRead]()
    for part in ("principal", "action", "resource"):
        names.update(_scope_names(definition[part]))
    for condition in definition["conditions"]:
        for node in _walk(condition["body"]):
            entity = node.get("__entity")
            if isinstance(entity, dict):
                names.add((str(entity.get("type")), str(entity.get("id"))))
        for path, is_test in _reads(condition["body"]):
            if path == ("context",):
                raise UnsupportedPolicy("it uses the whole context: use context.client, context.args.NAME …")
            if len(path) == 1:
                continue  # the entity itself: compared by its name and its parents
            facts.add(".".join(path[:2]))
            if path[:2] == ("context", "args"):
                if len(path) == 2:
                    raise UnsupportedPolicy("it uses all arguments at once: use context.args.NAME")
                reads.add(ArgumentRead(path[2:], not is_test))
    arguments = frozenset(each.path[0] for each in reads)
    return PolicyUse(frozenset(names), frozenset(facts), arguments, frozenset(reads))


def relax(policy: Policy) -> Json:
    """Return a policy as a permit without argument conditions, to test whether it may apply.

    It applies to every request that the policy applies to, whatever the arguments are, and perhaps to more.
    """
    conditions = [
        each
        for each in policy.definition["conditions"]
        if not any(path[:2] == ("context", "args") for path in _paths(each["body"]))
    ]
    return {**policy.definition, "effect": "permit", "conditions": conditions}


def scope_reaches(scope: Json, type_: str, id_: str, parents: frozenset[tuple[str, str]]) -> bool:
    """Return True if a policy's `scope` for its principal, action, or resource includes an entity.

    The entity is given by its type and id. `parents` are the groups or the server that it belongs to.
    """
    own = (type_, id_)
    op = scope["op"]
    if op == "All":
        return True
    if op == "==":
        return _pair(scope["entity"]) == own
    if op == "in":
        named = [scope["entity"]] if "entity" in scope else scope["entities"]
        return any(_pair(each) == own or _pair(each) in parents for each in named)
    if op == "is":
        inner = scope.get("in")
        matches = scope["entity_type"] == type_
        return matches and (inner is None or scope_reaches({"op": "in", **inner}, type_, id_, parents))
    return True  # an operator of a later version: it may reach everything


def may_reach_server(scope: Json, server: str) -> bool:
    """Return True if a policy's `scope` for its resource may include any of a server's items."""
    op = scope["op"]
    if op in ("==", "in"):
        named = [scope["entity"]] if "entity" in scope else scope["entities"]
        return any(is_in_server(*_pair(each), server) for each in named)
    if op == "is" and scope.get("in") is not None:
        return may_reach_server({"op": "in", **scope["in"]}, server)
    return True


def is_in_server(type_: str, id_: str, server: str) -> bool:
    """Return True if an entity is a server, or may be one of its items."""
    return id_ == server if type_ == "Server" else id_.startswith(f"{server}.")


def _pair(entity: Json) -> tuple[str, str]:
    return str(entity.get("type")), str(entity.get("id"))


def _scope_names(scope: Json) -> Iterator[tuple[str, str]]:
    for each in (scope, scope.get("in") or {}):
        if "entity" in each:
            yield _pair(each["entity"])
        for entity in each.get("entities", ()):
            yield _pair(entity)


def _walk(node: Any) -> Iterator[Json]:
    """Yield all JSON objects in a part of a policy, at any depth."""
    if isinstance(node, dict):
        yield node
        for each in node.values():
            yield from _walk(each)
    elif isinstance(node, list):
        for each in node:
            yield from _walk(each)


def _paths(node: Any) -> Iterator[tuple[str, ...]]:
    """Yield the attribute paths that a condition reads, each beginning with a variable such as `context`.

    For example, `context.args.a == 1 && principal in resource` has the paths (context, args, a), (principal,), and
    (resource,).
    """
    for path, _ in _reads(node):
        yield path


def _reads(node: Any) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield each attribute path that a condition reads, with True if only its existence is tested (`has`)."""
    path = _path_of(node)
    if path is not None:
        yield path, "has" in node
    elif isinstance(node, dict):
        for key, each in node.items():
            if key != "Value":
                yield from _reads(each)
    elif isinstance(node, list):
        for each in node:
            yield from _reads(each)


def _path_of(node: Any) -> tuple[str, ...] | None:
    """Return the attribute path of an expression such as `context.args.a`, or None.

    Raises `UnsupportedPolicy` if the expression reads an attribute of anything but a variable.
    """
    if not isinstance(node, dict) or len(node) != 1:
        return None
    if "Var" in node:
        return (node["Var"],) if node["Var"] in _VARIABLES else None
    for operator in (".", "has"):
        inner = node.get(operator)
        if isinstance(inner, dict) and "attr" in inner:
            left = _path_of(inner.get("left"))
            attribute = inner["attr"]
            if left is None:
                # Else an attribute could be read without being found here: (if … then principal else …).admin
                raise UnsupportedPolicy("it reads an attribute of an expression: write principal, resource or context")
            return (*left, str(attribute))
    return None


def read_policies(text: str, policies_to_json: Any) -> list[Policy]:
    """Parse the policies in a string.

    `policies_to_json` is the Cedar library's function that parses them. Raises `UnsupportedPolicy`, or `ValueError` if
    the text is not valid Cedar.
    """
    found: Json = json.loads(policies_to_json(text))
    if found.get("templates"):
        raise UnsupportedPolicy("templates (?principal, ?resource) are not supported: use one policy per group")
    policies: list[Policy] = []
    lines = _first_lines(text)
    labels: set[str] = set()
    for place, (id_, definition) in enumerate(sorted(found["staticPolicies"].items(), key=_number)):
        line = lines[place] if len(lines) == len(found["staticPolicies"]) else 0
        given = (definition.get("annotations") or {}).get("id")
        label = given or (f"line {line}" if line else id_)
        if label in labels and not given:
            label = f"{label}, {id_}"
        if label in labels:
            raise UnsupportedPolicy(f'two policies have the same name: @id("{label}")')
        labels.add(label)
        try:
            use = analyse(definition)
        except UnsupportedPolicy as exc:
            raise UnsupportedPolicy(f"policy {label}: {exc}") from None
        policies.append(Policy(id_, label, definition, use, line))
    return policies


def _number(entry: tuple[str, Any]) -> int:
    digits = entry[0].removeprefix("policy")
    return int(digits) if digits.isdecimal() else 0


def _first_lines(text: str) -> list[int]:
    """Return the line numbers where policies begin (`permit` or `forbid` outside quoted strings)."""
    lines = []
    for number, line in enumerate(_without_texts(text).split("\n"), 1):
        words = line.replace("(", " ( ").split()
        lines += [number] * sum(word in ("permit", "forbid") for word in words)
    return lines


def _without_texts(text: str) -> str:
    """Return a policy file without comments and quoted strings, keeping its line breaks."""
    kept, place = [], 0
    while place < len(text):
        if text.startswith("//", place):
            end = text.find("\n", place)
            place = end if end >= 0 else len(text)
        elif text[place] == '"':
            end = place + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            kept.append("\n" * text.count("\n", place, end))
            place = end + 1
        else:
            kept.append(text[place])
            place += 1
    return "".join(kept)


def reads_only_resource(condition: Json) -> bool:
    """Return True if a condition reads only the resource, not the principal or the context."""
    return all(path[0] == "resource" for path in _paths(condition))

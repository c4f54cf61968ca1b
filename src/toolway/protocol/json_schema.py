"""JSON Schema validation that is skipped if its cost cannot be bounded.

A server sends the schema and may make it slow on purpose: backtracking patterns, references that double at every
level, branching recursion. Patterns run on a linear-time engine; those that it cannot evaluate are dropped, and the
rest of the schema is validated. Before compilation the cost is counted with all references followed. A schema that is
too expensive, or recursive in more than one position, is not evaluated at all. References to other documents are
never followed. `$schema` sets the draft; the default is 2020-12. `format` is an annotation.

Checking whether a value matches is fast. The library takes about 20 µs for each error that it describes, so errors
are only described if their number is bounded too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from toolway.protocol.schema_patterns import drop_patterns, find_patterns
from toolway.types import Json

if TYPE_CHECKING:
    import jsonschema_rs

MAX_SCHEMA_COST: Final = 20_000  # schema positions, references followed
MAX_VALIDATION_WORK: Final = 1_000_000  # positions × values of one instance
MAX_REPORT_WORK: Final = 10_000  # the same, to describe all errors of an instance
MAX_TRIED_PATTERNS: Final = 200  # patterns that are tried one by one; of more, all are dropped if one is bad
_UNSUPPORTED_KEYWORDS: Final = ("$dynamicRef", "$recursiveRef", "$id", "id")  # they change the meaning of references


class SchemaValidator:
    """Validator for one JSON schema.

    If the schema is too expensive, instances are not validated, and `skip_reason` says why. `dropped_patterns` are
    patterns that are not checked, because only a backtracking engine could evaluate them.
    """

    def __init__(self, schema: Json) -> None:
        self._validator: Any = None
        self._cost = 1
        self.schema = schema
        self.skip_reason = ""
        self.dropped_patterns: tuple[str, ...] = ()
        try:
            self._cost = schema_cost(schema)
            try:
                self._validator = _compile(schema)
            except ValueError:
                bad = find_patterns(schema)
                if len(bad) <= MAX_TRIED_PATTERNS:
                    bad = {each for each in bad if not _is_linear(each)}
                if not bad:
                    raise
                self.schema = drop_patterns(schema, bad)
                self._validator = _compile(self.schema)
                self.dropped_patterns = tuple(sorted(bad))
        except (ValueError, RecursionError) as exc:
            self.skip_reason = str(exc).partition("\n")[0][:200] or type(exc).__name__

    @property
    def max_values(self) -> int:
        """Return how many JSON values an instance may have if it is to be validated."""
        return MAX_VALIDATION_WORK // self._cost

    def is_too_large(self, instance: Any) -> bool:
        """Return True if `instance` has too many values to be validated against this schema."""
        return self._validator is not None and _count_values(instance, self.max_values) is None

    def is_valid(self, instance: Any, text_bytes: int = 0) -> bool:
        """Return False if `instance` violates the schema, or is too large to know.

        Return True if it matches, or if the schema cannot be used for validation at all. `text_bytes` is the size of
        a JSON text that holds `instance`, if known, which bounds the number of values. Raises `ValueError` if
        `instance` contains a value that is not JSON, such as a date.
        """
        validator, max_values = self._validator, MAX_VALIDATION_WORK // self._cost
        if validator is None:
            return True
        if not 0 < text_bytes <= max_values and _count_values(instance, max_values) is None:
            return False
        return bool(validator.is_valid(instance))

    def errors(self, instance: Any) -> list[jsonschema_rs.ValidationError] | None:
        """Return all validation errors of an invalid `instance`, or None if that would take too long."""
        if _count_values(instance, MAX_REPORT_WORK // self._cost) is None:
            return None
        return list(self._validator.iter_errors(instance))

    def validate(self, instance: Any) -> str | None:
        """Return why `instance` violates the schema, or None if it matches, or is too large to be validated."""
        if self.is_valid(instance) or self.is_too_large(instance):
            return None
        errors = self.errors(instance)
        return errors[0].message[:500] if errors else "it does not match the schema"


def find_schema_error(schema: Json) -> tuple[str, str] | None:
    """Return (path, reason) if a schema is not valid JSON Schema, or else None."""
    import jsonschema_rs

    try:
        schema_cost(schema)  # a schema over the cost limit is skipped: the catalog already dropped its tool
    except ValueError:
        return None
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as exc:
        return ".".join(str(part) for part in exc.instance_path), exc.message
    except ValueError as exc:  # an unknown dialect
        return "$schema", str(exc)
    return None


def _compile(schema: Json) -> Any:
    import jsonschema_rs  # slow to import, and a hub without calls validates nothing

    return jsonschema_rs.validator_for(
        schema,
        validate_formats=False,
        retriever=_reject_external,
        pattern_options=jsonschema_rs.RegexOptions(),
    )


def _is_linear(pattern: str) -> bool:
    """Return True if the linear-time engine can evaluate a pattern."""
    try:
        _compile({"pattern": pattern})
    except ValueError:
        return False
    return True


def schema_cost(schema: Json) -> int:
    """Return an upper bound on the schema positions that one validation evaluates, following references.

    Raises `ValueError` if the number is too large or cannot be bounded.
    """
    return _CostCounter(schema).count(schema)


class _CostCounter:
    def __init__(self, root: Json) -> None:
        self._root = root
        self._costs: dict[int, int] = {}
        self._in_progress: set[int] = set()
        self._recursions = 0

    def count(self, node: Any) -> int:
        if isinstance(node, list):
            return self._count_all(node)
        if not isinstance(node, dict):
            return 0
        if id(node) in self._costs:
            return self._costs[id(node)]
        if id(node) in self._in_progress:
            self._recursions += 1
            if self._recursions > 1:
                raise ValueError("the schema is recursive in more than one position")
            return 1
        if any(isinstance(node.get(word), str) for word in _UNSUPPORTED_KEYWORDS):
            raise ValueError("the schema changes the meaning of its references")
        self._in_progress.add(id(node))
        total = 1 + self._count_all(list(node.values()))
        if isinstance(node.get("$ref"), str):
            total += self.count(self._resolve_ref(node["$ref"]))
        self._in_progress.discard(id(node))
        if total > MAX_SCHEMA_COST:
            raise ValueError("the schema is too large with its references followed")
        self._costs[id(node)] = total
        return total

    def _count_all(self, nodes: list[Any]) -> int:
        return sum(self.count(node) for node in nodes)

    def _resolve_ref(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise ValueError("the schema refers to another document")
        node: Any = self._root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise ValueError(f"the schema has no {reference[:80]}")
        return node


def _count_values(instance: Any, max_values: int) -> int | None:
    """Return the number of JSON values in `instance`, or None if there are more than `max_values`."""
    if instance.__class__ is dict and len(instance) < max_values:  # most arguments: counted without a stack
        for value in instance.values():
            if value.__class__ is dict or value.__class__ is list:
                break
        else:
            return len(instance) + 1
    count, pending = 0, [instance]
    while pending:
        node = pending.pop()
        count += 1
        if count + len(pending) > max_values:
            return None
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return count


def _reject_external(uri: str) -> Any:
    raise ValueError(f"references to other documents are not followed: {uri[:80]}")

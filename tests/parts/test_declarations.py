"""What the declarations of the parts name exists, and is what it is named for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import pytest

from toolway.part_api import registry
from toolway.part_api.part import Command, KeyAttribute, Part
from toolway.part_api.server_transport import ServerTransport
from toolway.part_api.start_guard import GuardChecks, StartGuard

PARTS = tuple(registry.built_in())
DECLARATIONS = (*PARTS, *(each for part in PARTS for each in part.key_attributes.values()))
VALUES = {"routes": Sequence, "schemas": Mapping, "tables": Sequence}
CLASSES = {"transport": ServerTransport, "start_guard": StartGuard, "guard_checks": GuardChecks}


@pytest.mark.parametrize(
    ("declaration", "method"),
    [(each, method) for each in DECLARATIONS for method in each.code],
    ids=lambda each: getattr(each, "name", each if isinstance(each, str) else type(each).__name__),
)
def test_code_names_needs_of_the_method(declaration: Part | KeyAttribute, method: str) -> None:
    found = declaration._find(method)
    if method in VALUES:
        assert isinstance(found, VALUES[method])
        return
    declared = [*inspect.signature(getattr(declaration, method)).parameters]
    if isinstance(declaration, KeyAttribute):  # its functions name their value as they like
        assert len(inspect.signature(found).parameters) == len(declared)
        return
    expected = ["part", *declared] if method == "open" else declared
    assert [*inspect.signature(found).parameters][: len(expected)] == expected


@pytest.mark.parametrize("kind", [Part, KeyAttribute])
def test_code_can_name_every_method(kind: type) -> None:
    methods = {name: inspect.getsource(each) for name, each in vars(kind).items() if inspect.isfunction(each)}
    assert len(methods) >= 3
    assert [name for name, source in methods.items() if f'self._find("{name}")' not in source] == []


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda each: getattr(each, "name", type(each).__name__))
def test_code_names_methods_of_a_part(declaration: Part | KeyAttribute) -> None:
    kind = Part if isinstance(declaration, Part) else KeyAttribute
    assert not declaration.code.keys() - {name for name, each in vars(kind).items() if inspect.isfunction(each)}


def paths(part: Part) -> Iterator[tuple[str, str]]:
    """Yield what a part names by module and attribute besides `code`: the kind, and the path."""
    for kind in (*CLASSES, "inbox", "cluster_store"):
        if path := getattr(part, kind):
            yield kind, path
    yield from (("audit_sink", path) for path in part.audit_sinks.values())
    pending: list[Command] = [*part.commands.values()]
    while pending:
        command = pending.pop()
        pending += (command.subcommands or {}).values()
        if command.function:
            yield "command", command.function


@pytest.mark.parametrize(("kind", "path"), [pytest.param(*each, id=each[1]) for part in PARTS for each in paths(part)])
def test_named_classes_and_functions_exist(kind: str, path: str) -> None:
    module, _, attribute = path.partition(":")
    found: Any = getattr(import_module(module), attribute)
    if kind in CLASSES:
        assert issubclass(found, CLASSES[kind])
    elif kind == "inbox":
        assert [*inspect.signature(found).parameters] == ["place"]
    elif kind == "audit_sink":
        assert [*inspect.signature(found).parameters] == ["settings", "read_only"]
    else:
        assert inspect.isfunction(found)

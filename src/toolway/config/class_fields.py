"""The fields of settings classes: a `msgspec.Struct`, which is cheap to import, or a dataclass, which can do more."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")


def field_names(kind: type) -> tuple[str, ...]:
    """Return a class's field names, or none if it is not a settings class."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(each.name for each in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def replace_fields(settings: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of an instance with other values in some fields."""
    if isinstance(settings, msgspec.Struct):
        return cast(T, msgspec.structs.replace(settings, **changes))
    return dataclasses.replace(settings, **changes)  # type: ignore[type-var] # `field_names` found it

"""Dataclasses and patterns that are compiled on first use.

The standard library compiles the methods of a dataclass, and a regular expression, when a module is imported. That was
half of the time of `from toolway import Hub`, and a program uses only some of them. Both behave here as in the standard
library. Type checkers see the standard library.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from typing import TYPE_CHECKING, Any, AnyStr, Final, cast

from toolway._os import register_at_fork

__all__ = ["compile_pattern", "dataclass"]


def compile_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression that is compiled when it is used first."""
    return cast("re.Pattern[AnyStr]", _Pattern(pattern, flags))


class _UsedPattern:
    """Regular expression after its first use: has the methods of the compiled pattern as attributes."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._source: Final[tuple[Any, int]] = (pattern, flags)

    def __repr__(self) -> str:
        return repr(re.compile(*self._source))


class _Pattern(_UsedPattern):
    """Regular expression that was not used yet. The first access to an attribute compiles it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        compiled: re.Pattern[Any] = re.compile(*self._source)
        self.__dict__.update((each, getattr(compiled, each)) for each in dir(compiled) if not each.startswith("_"))
        self.__class__ = _UsedPattern  # type: ignore[assignment]  # lookups without `__getattr__` are faster
        return getattr(compiled, name)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """Make a class a dataclass whose methods are compiled on the first use of one of them or of the fields."""
        if cls is None:
            return lambda decorated: _delay(decorated, options)
        return _delay(cls, options)


_lock: Final = threading.RLock()
# A child process has only the thread that forked. A lock of another thread would stay locked in it for ever.
register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class _LazyPart:
    """Attribute of a dataclass that is not compiled yet. The first access compiles all methods of the class."""

    __slots__ = ("_compile", "_name", "_owner")

    def __init__(self, owner: type, name: str, compile_class: Any) -> None:
        self._owner = owner
        self._name = name
        self._compile = compile_class

    def __get__(self, instance: object, owner: type) -> Any:
        with _lock:
            if self._owner.__dict__.get(self._name) is self:  # otherwise another thread was first
                self._compile()
        found = self._owner.__dict__[self._name]
        return found.__get__(instance, owner) if hasattr(type(found), "__get__") else found


def _delay(cls: type, options: dict[str, Any]) -> type:
    """Return the dataclass with its slots; its methods are compiled when one is used for the first time."""
    source = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    if options.get("slots"):
        cls = _with_slots(cls, source, frozen=options.get("frozen", False))
    for name in _lazy_names(cls, options):
        setattr(cls, name, _LazyPart(cls, name, lambda: _compile(cls, source, options)))
    return cls


def _compile(cls: type, source: dict[str, Any], options: dict[str, Any]) -> None:
    """Build the methods of a lazy dataclass and add them to the class `cls`, at the first use of one of them.

    They are made on a copy of the class and moved to the class, `__init__` last, so that no other thread can create an
    instance while a method is missing.
    """
    if options.get("slots"):
        for value in source.values():
            if isinstance(value, dataclasses.Field) and not value.init:
                _set_by_init(value)
    copy: Any = type(cls)(cls.__name__, cls.__bases__, {**source, "__qualname__": cls.__qualname__})
    dataclasses.dataclass(copy, **{**options, "slots": False})
    made = {name: value for name, value in copy.__dict__.items() if value is not source.get(name)}
    if options.get("frozen"):
        made.update(_frozen_methods(cls, frozenset(copy.__dataclass_fields__)))
    if options.get("slots"):
        made = {name: value for name, value in made.items() if name not in copy.__dataclass_fields__}
    else:
        for name in copy.__dataclass_fields__.keys() & cls.__dict__.keys() - copy.__dict__.keys():
            delattr(cls, name)  # `__init__` makes a default for each instance
    for name in ("__dict__", "__weakref__"):
        made.pop(name, None)
    init = made.pop("__init__", None)
    for name, value in made.items():
        setattr(cls, name, value)
    if init is not None:
        cls.__init__ = init  # type: ignore[misc]


def _frozen_methods(cls: Any, names: frozenset[str]) -> dict[str, Any]:
    """Return `__setattr__` and `__delattr__` of a frozen dataclass, which reject every change."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _set_by_init(field: Any) -> None:
    """Turn the default of a field that is no parameter of `__init__` into a factory, so that `__init__` assigns it.

    In a class with slots, nothing else would assign it.
    """
    if field.default is not dataclasses.MISSING:
        value, field.default = field.default, dataclasses.MISSING
        field.default_factory = lambda: value


def _lazy_names(cls: type, options: dict[str, Any]) -> list[str]:
    """Return the names of the methods and attributes that the dataclass decorator will add to the class."""
    added = ["__dataclass_fields__", "__dataclass_params__", "__match_args__", "__init__", "__repr__"]
    if options.get("eq", True):
        added.append("__eq__")
        if options.get("frozen"):
            added.append("__hash__")
        elif "__hash__" not in cls.__dict__:
            cls.__hash__ = None  # type: ignore[assignment]
    if options.get("order"):
        added += ["__lt__", "__le__", "__gt__", "__ge__"]
    return [name for name in added if name not in cls.__dict__]


def _with_slots(cls: type, source: dict[str, Any], *, frozen: bool) -> type:
    """Return a copy of the class with a slot for each field that no base class has a slot for."""
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    annotations: dict[str, Any] = source.get("__annotations__", {})
    fields = [name for name, kind in annotations.items() if "ClassVar" not in str(kind)]
    namespace = {name: value for name, value in source.items() if name not in fields}
    namespace["__slots__"] = tuple(name for name in fields if name not in inherited)
    namespace["__qualname__"] = cls.__qualname__
    if frozen:
        namespace.setdefault("__getstate__", _get_state)
        namespace.setdefault("__setstate__", _set_state)
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _get_state(self: Any) -> list[Any]:
    """Return the field values of an instance for `copy` and `pickle`. Used for frozen classes with slots."""
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)

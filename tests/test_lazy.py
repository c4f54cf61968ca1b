"""Dataclasses and patterns that are compiled on first use behave as those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
import threading
from dataclasses import field
from typing import ClassVar

import pytest

from toolway import _lazy


@_lazy.dataclass(frozen=True, slots=True)
class Point:
    """A class at module level, which can be pickled."""

    x: int
    y: int = 3
    tags: list[str] = field(default_factory=list, compare=False)
    length: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.x:
            object.__setattr__(self, "length", self.x + self.y)


@_lazy.dataclass(frozen=True, slots=True)
class Point3(Point):
    """A subclass with a slot more and another default."""

    y: int = 4
    z: int = 0


def make_classes(decorate):
    """Return classes of all the kinds that the package has."""

    @decorate(frozen=True, slots=True)
    class Base:
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        d: int = field(default=5, init=False)
        kind: ClassVar[str] = "kind"

    @decorate(frozen=True, slots=True)
    class Derived(Base):
        """Documented."""

        b: str = "other"
        e: float = field(default=1.0, kw_only=True)

    class Plain(Derived):
        pass

    @decorate(frozen=True)
    class WithoutSlots:
        a: int = 1

        def __repr__(self):
            return "own"

    @decorate(slots=True)
    class Mutable:
        a: int = 1
        b: dict[str, int] = field(default_factory=dict)

    @decorate(slots=True, eq=False)
    class ByIdentity:
        a: int = 1

    @decorate(frozen=True, slots=True, order=True)
    class Ordered:
        a: int = 1

    @decorate
    class Bare:
        a: int = 1

        def __hash__(self):
            return 7

    return [Base, Derived, Plain, WithoutSlots, Mutable, ByIdentity, Ordered, Bare]


def facts(cls):
    """What can be seen of a dataclass."""
    one, same = (cls(1) if cls.__name__ in ("Base", "Derived", "Plain") else cls() for _ in range(2))
    assigned = None
    try:
        one.a = 2
    except dataclasses.FrozenInstanceError as exc:
        assigned = str(exc)
    changed = dataclasses.replace(same, a=3)
    return {
        "signature": str(inspect.signature(cls)),
        "fields": [(each.name, each.init, each.repr, each.compare, each.kw_only) for each in dataclasses.fields(cls)],
        "slots": cls.__dict__.get("__slots__"),
        "names": sorted(cls.__dict__.keys() - {"__annotations__"}),
        "match": cls.__match_args__,
        "params": repr(cls.__dataclass_params__),
        "repr": re.sub("0x[0-9a-f]+", "", repr(one)),
        "equal": (one == same, same == changed),
        "hash": cls.__hash__ is None,
        "values": dataclasses.asdict(changed),
        "copy": dataclasses.asdict(copy.deepcopy(same)),
        "assigned": assigned,
        "dict": hasattr(one, "__dict__"),
    }


def test_a_dataclass_is_what_the_standard_library_makes():
    ours, theirs = make_classes(_lazy.dataclass), make_classes(dataclasses.dataclass)
    for own, standard in zip(ours, theirs, strict=True):
        assert facts(own) == facts(standard), own


def test_nothing_is_compiled_before_the_first_use(monkeypatch):
    made = []
    real = dataclasses.dataclass

    def noted(cls, **options):
        made.append(cls.__name__)
        return real(cls, **options)

    monkeypatch.setattr(dataclasses, "dataclass", noted)
    _, derived, *_ = make_classes(_lazy.dataclass)
    assert made == []
    assert derived(1).b == "other"
    assert made == ["Derived", "Base"]
    assert derived(2) != derived(1)
    assert made == ["Derived", "Base"]


def test_a_method_of_the_base_class_is_called_by_super():
    base, *_ = make_classes(_lazy.dataclass)

    class Child(base):  # type: ignore[misc, valid-type]
        def __init__(self):
            base.__init__(self, 4)

        def __repr__(self):
            return "child of " + super().__repr__()

    assert Child().a == 4
    assert "a=4" in repr(Child())


def test_a_process_that_made_no_instance_can_read_a_pickle():
    point = Point3(1, tags=["t"])
    program = f"import pickle; from tests.test_lazy import Point3; print(pickle.loads({pickle.dumps(point)!r}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.stdout.strip(), result.stderr) == (repr(point), "")


def test_a_default_that_is_no_parameter_is_assigned():
    assert (Point(0).length, Point(2).length) == (0, 5)


def test_threads_that_use_a_class_first_at_once_get_one_class():
    for _ in range(20):
        base, *_ = make_classes(_lazy.dataclass)
        start = threading.Barrier(4)
        made: list[object] = []

        def use(start=start, made=made, base=base):
            start.wait(10)
            made.append(base(1))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert made == [base(1)] * 4


def test_a_class_pattern_matches():
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


@pytest.mark.parametrize(("source", "text"), [(r"(?P<first>a+)b", "xaab"), (rb"(a+)b", b"xaab")])
def test_a_pattern_is_what_re_makes(source, text):
    ours, theirs = _lazy.compile_pattern(source, re.IGNORECASE), re.compile(source, re.IGNORECASE)
    assert repr(ours) == repr(theirs)
    assert ours.findall(text) == theirs.findall(text) == [source[:0] + text[1:3]]
    assert (ours.pattern, ours.flags, ours.groups, ours.groupindex) == (source, theirs.flags, 1, theirs.groupindex)
    assert ours.sub(source[:0], text) == theirs.sub(source[:0], text)
    assert not hasattr(ours, "__len__")


def test_a_pattern_is_compiled_once(monkeypatch):
    compiled = []
    real = re.compile

    def noted(*args):
        compiled.append(args)
        return real(*args)

    monkeypatch.setattr(re, "compile", noted)
    pattern = _lazy.compile_pattern("a+")
    assert compiled == []
    assert pattern.match("aa")
    assert pattern.fullmatch("aa")
    assert compiled == [("a+", 0)]


def test_a_fork_does_not_inherit_a_class_that_another_thread_compiles():
    program = """
import dataclasses, os, threading, time
from toolway import _lazy

@_lazy.dataclass
class Pair:
    left: int

begun, build = threading.Event(), dataclasses.dataclass

def build_slowly(*args, **options):
    begun.set()
    time.sleep(0.1)
    return build(*args, **options)

dataclasses.dataclass = build_slowly
threading.Thread(target=Pair, args=(1,)).start()
begun.wait()
child = os.fork()
if child == 0:
    print(Pair(2), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(Pair(3))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["Pair(left=2)", "Pair(left=3)"], done.stderr

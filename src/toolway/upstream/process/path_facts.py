"""What a sandbox must know about paths: who could replace them, and where else they are mounted.

A mount hides one path. That is useless if the server can rename a folder above it, replace a symbolic link on the
way, or reach the same files through another mount.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

MOUNTS: Final = "/proc/self/mountinfo"
_MAX_LINKS: Final = 40  # as the kernel


class Mount(NamedTuple):
    """One mount: which folder of a file system it shows, and where."""

    device: str
    root: str  # path in the file system
    point: str


def contains(folder: str, path: str) -> bool:
    """Return True if `path` is the folder or inside it. Symbolic links are followed."""
    return is_below(os.path.realpath(folder), os.path.realpath(path))


def is_below(folder: str, path: str) -> bool:
    """Return True if `path` is the folder or inside it, going by names alone."""
    return os.path.commonpath([folder, path]) == folder


def can_change(folder: str) -> bool:
    """Return True if this user can create and rename entries in a folder, or grant itself that right."""
    if sys.platform == "win32":
        return True  # unknown
    try:
        return os.access(folder, os.W_OK) or os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False


def renamable_ancestors(paths: Iterable[str]) -> list[str]:
    """Return folders above these real paths that this user could rename, parents first."""
    above = {each for path in paths for each in _ancestors(path) if each != "/"}
    return sorted(each for each in above if can_change(os.path.dirname(each)))


def replaceable_link(path: str) -> str:
    """Return the first symbolic link on the way to `path` that this user could replace, or "" if there is none."""
    done, links = "/", 0
    rest = os.path.abspath(path).split("/")[1:]
    while rest:
        name = rest.pop(0)
        here = os.path.normpath(os.path.join(done, name))
        if name == ".." or here == done or not os.path.islink(here):
            done = here
            continue
        links += 1
        if can_change(done) or links > _MAX_LINKS:
            return here
        target = os.readlink(here)
        done = "/" if target.startswith("/") else done
        rest = target.split("/") + rest
    return ""


def all_places(paths: Iterable[str]) -> list[str]:
    """Return the real paths of those that exist, and every other path where a mount shows the same files."""
    real = {os.path.realpath(path) for path in paths if os.path.exists(path)}
    mounts = _read_mounts()
    return sorted({*real, *(each for path in real for each in _other_places(path, mounts))})


def _other_places(path: str, mounts: list[Mount]) -> Iterator[str]:
    around = [
        each for each in reversed(mounts) if is_below(each.point, path)
    ]  # of two at one point, the later one counts
    if not around:
        return
    inner = max(around, key=lambda each: len(each.point))
    inside = os.path.normpath(f"{inner.root}/{os.path.relpath(path, inner.point)}")
    for each in mounts:
        if each.device == inner.device and each.point != inner.point and is_below(each.root, inside):
            place = os.path.normpath(f"{each.point}/{os.path.relpath(inside, each.root)}")
            if _is_same(place, path):
                yield place


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False  # another mount covers it


def _read_mounts() -> list[Mount]:
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return []
    return [Mount(row[2], _unescape(row[3]), _unescape(row[4])) for row in rows if row[3].startswith("/")]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _ancestors(path: str) -> Iterator[str]:
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        yield path

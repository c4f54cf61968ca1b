"""The digest of an installed tree: all of its files, links, and executable bits.

The digest has two parts. The portable part covers the content of the packages, and is in `toolway.lock`. The local part
covers what installation adds on this machine, such as compiled Python and scripts that contain the path of their
interpreter.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Final, NamedTuple

_LOCAL_METADATA: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
_CHUNK: Final = 1024 * 1024
MAX_FILES: Final = 500_000


class TreeDigest(NamedTuple):
    """The digests of the portable and local parts of installed packages.

    It also has the number of files and bytes, and the path of the newest file.
    """

    portable: str
    local: str
    files: int
    size: int
    newest: str


class StrangeFile(OSError):
    """Raised when installed packages contain a device, pipe, or socket, or too many files."""


def hash_tree(root: str) -> TreeDigest:
    """Read every file of the packages installed in `root`, and return the digests. Raises `OSError` if that fails.

    Every file is read because a flipped bit on the disk changes neither its size nor its times.
    """
    portable, local = hashlib.sha256(), hashlib.sha256()
    files = size = newest_time = 0
    newest = ""
    for path, entry in _walk(root):
        files += 1
        if files > MAX_FILES:
            raise StrangeFile(f"more than {MAX_FILES} files")
        status = entry.stat(follow_symlinks=False)
        if status.st_ctime_ns > newest_time:
            newest_time, newest = status.st_ctime_ns, path
        if stat.S_ISLNK(status.st_mode):
            kind, content = "link", hashlib.sha256(os.fsencode(os.readlink(entry.path))).hexdigest()
        elif stat.S_ISREG(status.st_mode):
            kind, content = "program" if status.st_mode & 0o100 else "file", _hash_file(entry.path)
            size += status.st_size
        else:
            raise StrangeFile(f"{path} is neither a file nor a link")
        part = local if _is_local(path) else portable
        part.update(f"{kind}\0{content}\0".encode() + os.fsencode(path) + b"\0\n")
    return TreeDigest(portable.hexdigest(), local.hexdigest(), files, size, newest)


def _walk(root: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Return all files and links below a folder with their relative paths, in a fixed order."""
    found: list[tuple[str, os.DirEntry[str]]] = []
    pending = [("", root)]
    while pending:
        prefix, folder = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append((f"{prefix}{entry.name}/", entry.path))
                else:
                    found.append((f"{prefix}{entry.name}", entry))
    return sorted(found, key=lambda each: each[0])


def _hash_file(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        return digest.hexdigest()


def _is_local(path: str) -> bool:
    """Return True if a file belongs to a tree's local part, which means that installation on this machine wrote it."""
    if path.startswith("node_modules/"):
        return False
    folder, _, name = path.rpartition("/")
    if path == "pyvenv.cfg" or folder == "bin":
        return True
    if folder.endswith(".dist-info") and name in _LOCAL_METADATA:
        return True
    return folder.endswith("/__pycache__") and name.endswith(".pyc")

"""Names: `server.tool` for people, `server__tool` for models, `ToolRef` inside.

A server's name has only `[a-z0-9-]`, so the first `.` or `__` always ends it, whatever the tool is called.
"""

from __future__ import annotations

import hashlib
import re

from toolway.model import ToolRef

MODEL_LIMIT = 64  # what model providers accept: ^[a-zA-Z0-9_-]{1,64}$
_SPLIT = re.compile(r"([a-z0-9-]+)(?:\.|__)(.+)", re.DOTALL)
_NOT_FOR_MODELS = re.compile(r"[^a-zA-Z0-9_-]")


def parse(name: str) -> ToolRef | None:
    """`server.tool` or `server__tool` as a ToolRef; None where there is no server in it."""
    found = _SPLIT.fullmatch(name)
    return ToolRef(found[1], found[2]) if found else None


def for_models(ref: ToolRef) -> str:
    """A name that every model provider accepts. Whatever had to be changed or cut is told apart by a stable hash."""
    return for_models_of(ref.server, ref.tool)


def for_models_of(server: str, tool: str) -> str:
    """The same, of a server and whatever it calls by a name."""
    plain = f"{server}__{tool}"
    name = _NOT_FOR_MODELS.sub("_", plain)
    if name == plain and len(name) <= MODEL_LIMIT:
        return name
    return marked(name, server, tool)


def marked(name: str, server: str, tool: str) -> str:
    """A name that is told apart from all like it."""
    mark = hashlib.sha256(f"{server}.{tool}".encode()).hexdigest()[:8]
    return f"{name[: MODEL_LIMIT - 9]}_{mark}"

"""Tool names: `server.tool` for users, `server__tool` for models, `ToolRef` internally.

A server's name has only `[a-z0-9-]`, so the first `.` or `__` always ends it, for every tool name.
"""

from __future__ import annotations

import hashlib
import re

from toolway.types import ToolRef

MAX_MODEL_NAME = 64  # accepted by model providers: ^[a-zA-Z0-9_-]{1,64}$
_QUALIFIED_NAME = re.compile(r"([a-z0-9-]+)(?:\.|__)(.+)", re.DOTALL)
_INVALID_MODEL_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


def parse_tool_name(name: str) -> ToolRef | None:
    """Parse `server.tool` or `server__tool`; None without a server part."""
    found = _QUALIFIED_NAME.fullmatch(name)
    return ToolRef(found[1], found[2]) if found else None


def model_name_for(ref: ToolRef) -> str:
    """Return the name of a tool for models, which every provider accepts.

    The name ends with a hash if it had to be changed.
    """
    return make_model_name(ref.server, ref.tool)


def make_model_name(server: str, tool: str) -> str:
    """Return a tool's or prompt's name for models, with a hash at the end if it had to change."""
    plain = f"{server}__{tool}"
    name = _INVALID_MODEL_CHARS.sub("_", plain)
    if name == plain and len(name) <= MAX_MODEL_NAME:
        return name
    return with_hash_suffix(name, server, tool)


def with_hash_suffix(name: str, server: str, tool: str) -> str:
    """Return `name` shortened to the limit of model providers, with a hash that makes it unique.

    The hash covers the server and tool.
    """
    digest = hashlib.sha256(f"{server}.{tool}".encode()).hexdigest()[:8]
    return f"{name[: MAX_MODEL_NAME - 9]}_{digest}"

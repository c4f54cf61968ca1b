"""The parts of docs/reference/admin-api.md, from the OpenAPI document of the gateway's admin API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from toolway.gateway.admin.openapi import build_description
from toolway.gateway.admin.routes import all_routes


def operations() -> str:
    """Return every operation, grouped by the first part of its path."""
    document = build_description(all_routes())
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        part = path.removeprefix("/admin").strip("/").partition("/")[0]
        heading = "gateway" if part in ("", "openapi.json", "reload", "health") else part
        for method, operation in methods.items():
            groups.setdefault(heading, []).extend(_operation(method.upper(), path, operation))
    lines: list[str] = []
    for heading, rows in groups.items():
        lines += [f"### /admin: {heading}", "", *rows]
    return "\n".join(lines)


def schemas() -> str:
    """Return the fields of every document."""
    lines: list[str] = []
    for name, schema in build_description(all_routes())["components"]["schemas"].items():
        lines += [f"### {name}", ""]
        if schema.get("description"):
            lines += [f"{schema['description'][0].upper()}{schema['description'][1:]}.", ""]
        if "properties" not in schema:
            lines += [f"{_kind(schema)}", ""]
            continue
        lines += ["| field | type |", "|---|---|"]
        required = schema.get("required", [])
        for field, kind in schema["properties"].items():
            mark = "" if field in required else " (optional)"
            lines.append(f"| `{field}`{mark} | {_kind(kind)} |")
        lines.append("")
    return "\n".join(lines)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from (f"**`{method} {path}`**", "")
    note = f" {operation['description']}" if "description" in operation else ""
    yield from (f"{operation['summary']}.{note}", "")
    for parameter in operation["parameters"]:
        if parameter["in"] == "query":
            yield f"- `?{parameter['name']}=`: {parameter['description']}"
    if "requestBody" in operation:
        yield f"- Body: {_content(operation['requestBody'])}"
    reply = operation["responses"]["200"]
    events = ", or a stream of events" if "text/event-stream" in reply["content"] else ""
    yield from (f"- Reply: {_content(reply)}{events}", "")


def _content(part: dict[str, Any]) -> str:
    return _kind(part["content"]["application/json"]["schema"])


def _kind(schema: dict[str, Any]) -> str:
    """Return the type of a schema in words, with links to named schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    kinds = schema.get("type", "any")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    words = []
    for kind in kinds:
        if kind == "array" and "items" in schema:
            words.append(f"array of {_kind(schema['items'])}")
        elif kind == "object" and schema.get("properties"):
            words.append("object: " + ", ".join(f"`{name}`" for name in schema["properties"]))
        else:
            words.append(kind)
    return re.sub(r"\|", r"\\|", " or ".join(words))

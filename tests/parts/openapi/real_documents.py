"""Real documents: those next to this repository, and GitHub's own, which `make interop ARGS=openapi` installs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import mcp_types

from toolway.catalog.catalog import Catalog
from toolway.parts.openapi.document.models import ApiDocument
from toolway.protocol import tool_names
from toolway.types import Json

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "openapi"
INSTALLED = ROOT / "build" / "openapi"
GITHUB = INSTALLED / "node_modules" / "@octokit" / "openapi" / "generated" / "api.github.com.json"


def documents() -> list[Path]:
    """What there is on this machine."""
    shared = sorted(path for path in SHARED.glob("*") if path.suffix in (".json", ".yaml", ".yml"))
    return shared + [GITHUB] * GITHUB.is_file()


def flaws(document: ApiDocument) -> list[str]:
    """What is wrong with the tools of a document, looked at as a client would, by nothing that made them."""
    found = [flaw for operation in document.operations for flaw in _flaws_of(operation.tool)]
    tools = [operation.tool for operation in document.operations]
    twice = len(tools) - len({tool["name"] for tool in tools})
    catalog = Catalog()
    catalog.add_server("api")
    catalog.replace("api", "tools", tools)
    return [*found, *([f"{twice} names stand twice"] if twice else []), *catalog.problems("api")]


def _flaws_of(tool: Json) -> list[str]:
    name = tool["name"]
    found = []
    mcp_types.Tool.model_validate(tool)
    if tool_names.make_model_name("a-server", name) != f"a-server__{name}":
        found.append(f"{name} is not a name for models")
    for word in ("inputSchema", "outputSchema"):
        schema: Any = tool.get(word)
        if schema is None:
            continue
        if schema.get("type") != "object":
            found.append(f"{name}: the {word} is not an object")
        if not METASCHEMA.is_valid(schema):
            found.append(f"{name}: the {word} is not JSON Schema 2020-12")
        jsonschema_rs.Draft202012Validator(schema, retriever=_refuse)  # every reference leads somewhere
    output = tool.get("outputSchema")
    if output is not None and not jsonschema_rs.Draft202012Validator(output, retriever=_refuse).is_valid({}):
        found.append(f"{name}: an empty answer is not what the outputSchema promises")
    return found


METASCHEMA = jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})


def _refuse(uri: str) -> Any:
    raise ValueError(uri)

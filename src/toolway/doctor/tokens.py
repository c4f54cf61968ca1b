"""About how many tokens the definitions of tools cost a model, each time it is asked something.

Estimates: the providers' own counters are not to be had offline. Each provider is sent another text for the same tool,
so that text is made, and its characters are divided by what one token of such text holds on average.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolway.model import Json

#: Characters of a token in definitions of tools.
_OPENAI: Final = 4.4
_ANTHROPIC: Final = 3.6
_GEMINI: Final = 4.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of all tools together."""

    openai: int = 0
    anthropic: int = 0
    gemini: int = 0

    @property
    def most(self) -> int:
        return max(self.openai, self.anthropic, self.gemini)


def cost_of(tools: Sequence[Json]) -> Cost:
    return Cost(
        openai=round(sum(map(_as_openai, tools)) / _OPENAI),
        anthropic=round(sum(map(_as_json, tools)) / _ANTHROPIC),
        gemini=round(sum(map(_as_json, tools)) / _GEMINI),
    )


def _as_json(tool: Json) -> int:
    sent = {key: tool.get(key) for key in ("name", "description", "inputSchema") if tool.get(key)}
    return len(json.dumps(sent, ensure_ascii=False))


def _as_openai(tool: Json) -> int:
    """Functions are shown to these models as TypeScript, which has fewer signs than JSON."""
    head = f"// {tool.get('description', '')}\ntype {tool.get('name', '')} = (_: {{\n}}) => any;\n"
    return len(head) + _typescript(tool.get("inputSchema"), 0)


def _typescript(schema: Any, depth: int) -> int:
    if not isinstance(schema, dict) or depth > 32:
        return 3
    size = len(str(schema.get("description", ""))) + 4 if schema.get("description") else 0
    if isinstance(schema.get("enum"), list):
        return size + sum(len(json.dumps(value, ensure_ascii=False)) + 3 for value in schema["enum"])
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return size + 4 + sum(len(key) + 4 + _typescript(value, depth + 1) for key, value in properties.items())
    cases: list[Any] = next(
        (schema[word] for word in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(word), list)), []
    )
    inner = sum(_typescript(case, depth + 1) + 3 for case in cases)
    if isinstance(schema.get("items"), dict):
        inner += _typescript(schema["items"], depth + 1) + 2
    return size + (inner or len(str(schema.get("type", "any"))))

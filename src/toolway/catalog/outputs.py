"""Whether a tool's structured answer is what its definition promised."""

from __future__ import annotations

from toolway.catalog.index import Tool
from toolway.model import Json
from toolway.protocol.schemas import Schema


class Outputs:
    """Compiled output schemas, each made when it is first needed and again when its definition changes."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str], tuple[Json, Schema]] = {}

    def problem(self, tool: Tool, result: Json) -> str | None:
        """Why the structured content of `result` breaks the tool's promise, or None."""
        schema, structured = tool.output_schema, result.get("structuredContent")
        if schema is None or structured is None or result.get("isError") is True:
            return None
        key = (tool.server, tool.key)
        known = self._compiled.get(key)
        if known is None or known[0] is not schema:
            known = self._compiled[key] = (schema, Schema(schema))
        return known[1].problem(structured)

    def forget(self, server: str) -> None:
        for key in [key for key in self._compiled if key[0] == server]:
            del self._compiled[key]

"""Tools of real servers: the schema rules of OpenAI, Anthropic and Gemini and the types of their SDKs accept them.

The servers of the corpus listed these schemas, here without descriptions. `pytest -s` prints what had to be changed.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from toolway.adapters.schemas import adapt_schema
from toolway.doctor.lint import PROVIDERS, Provider, lint_tools
from toolway.protocol.tool_names import MAX_MODEL_NAME, make_model_name

Json = dict[str, Any]
STORED = Path(__file__).with_name("real_tools.json.gz")
REAL: dict[str, dict[str, Json]] = json.loads(gzip.decompress(STORED.read_bytes()))
TOOLS = [(server, name, schema) for server, tools in REAL.items() for name, schema in tools.items()]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_provider_rules_accept_all_tools(provider: Provider) -> None:
    changed: Counter[str] = Counter()
    tools = 0
    for server, name, schema in TOOLS:
        adapted = adapt_schema(schema, (provider,))
        found = lint_tools(server, [{"name": name, "inputSchema": adapted.schema}]).findings
        assert [each for each in found if each.severity == "error" and provider in each.providers] == []
        changed.update(each.rpartition(": ")[2] for each in adapted.changes)
        tools += bool(adapted.changes)
    print(f"{provider}: {len(TOOLS)} tools of {len(REAL)} servers accepted, {tools} repaired: {dict(changed)}")
    plain = (
        sum("$schema" in schema for _, _, schema in TOOLS),
        sum("properties" not in schema for _, _, schema in TOOLS),
    )
    print(f'  "$schema" removed from {plain[0]}, empty "properties" added to {plain[1]}')
    assert len(TOOLS) > 400


def test_every_tool_gets_a_unique_valid_name() -> None:
    names = [make_model_name(server, name) for server, name, _ in TOOLS]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= MAX_MODEL_NAME


def definitions(provider: Provider) -> list[Json]:
    return [
        {"name": make_model_name(server, name), "schema": adapt_schema(schema, (provider,)).schema}
        for server, name, schema in TOOLS
    ]


def test_openai_types_accept_all_tools() -> None:
    pytest.importorskip("openai", reason="openai is not installed: make clients ARGS=adapters")
    from openai.types.chat import ChatCompletionFunctionToolParam
    from openai.types.responses import FunctionToolParam
    from pydantic import TypeAdapter

    chat, responses = TypeAdapter(ChatCompletionFunctionToolParam), TypeAdapter(FunctionToolParam)
    for each in definitions("openai"):
        function = {"name": each["name"], "parameters": each["schema"]}
        chat.validate_python({"type": "function", "function": function})
        responses.validate_python({"type": "function", **function, "strict": False})


def test_anthropic_types_accept_all_tools() -> None:
    pytest.importorskip("anthropic", reason="anthropic is not installed: make clients ARGS=adapters")
    from anthropic.types import ToolParam
    from pydantic import TypeAdapter

    adapter = TypeAdapter(ToolParam)
    for each in definitions("anthropic"):
        adapter.validate_python({"name": each["name"], "input_schema": each["schema"]})


def test_gemini_types_accept_all_tools() -> None:
    pytest.importorskip("google.genai", reason="google.genai is not installed: make clients ARGS=adapters")
    from google.genai import types

    for each in definitions("gemini"):
        declaration = types.FunctionDeclaration(name=each["name"], parameters_json_schema=each["schema"])
        assert declaration.parameters_json_schema == each["schema"]

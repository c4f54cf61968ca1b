"""Each count of tokens names the tokenizer it is for, and is the same wherever a server is shown."""

from __future__ import annotations

import pytest

from toolway.catalog.catalog import Catalog
from toolway.doctor.lint import lint_tools
from toolway.search.tokens import TOKENS_LABEL, TokenCost, estimate_tool_tokens

pytestmark = pytest.mark.user_trial("12")
TOOLS = [
    {"name": f"tool_{n}", "description": "Finds things. ü " * n, "inputSchema": {"type": "object"}, "annotations": {}}
    for n in range(1, 40)
]


def test_lint_and_lists_count_the_same_tokens() -> None:
    catalog = Catalog()
    catalog.add_server("acme")
    catalog.replace("acme", "tools", TOOLS)
    listed = estimate_tool_tokens(catalog.tools("acme"))
    assert lint_tools("acme", TOOLS).cost == TokenCost.of_server("acme", TOOLS)
    assert lint_tools("acme", TOOLS).cost.openai == listed > 2000
    assert "OpenAI" in TOKENS_LABEL

"""Real documents next to this repository, of every dialect and both syntaxes: every operation is a valid tool.

`make interop ARGS=openapi` does the same with all of them, and GitHub's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parts.openapi import real_documents
from toolway.parts.openapi.document.loader import load_document

COUNTS = {
    "adyen-checkout.yaml": 28,
    "box.json": 296,
    "discord.json": 242,
    "netlify-swagger2.yml": 174,
    "petstore.yaml": 19,
    "slack-web-swagger2.json": 174,
    "twilio-conversations.yaml": 103,
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_every_operation_of_real_document_is_a_valid_tool(name: str) -> None:
    path: Path = real_documents.SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not on this machine")
    document = load_document(path.read_bytes(), source=name)
    assert document.skipped == () and document.warnings == ()
    assert len(document.operations) == COUNTS[name]
    assert document.servers and document.title
    assert real_documents.flaws(document) == []

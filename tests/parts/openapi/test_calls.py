"""Every operation of a document is called once: what arrives is what the document prescribes.

The stated size, every operation of every document, is `make interop ARGS=openapi`; here it is one in a few.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.parts.openapi import own_documents
from tests.parts.openapi.call_lab import call_all
from tests.parts.openapi.expected_requests import Arrived, prescriptions
from tests.parts.openapi.real_documents import SHARED, documents

pytestmark = pytest.mark.anyio

ALL = "TOOLWAY_LONG" in os.environ
SMALL = 700_000  # bytes: makers of all kinds, 2.0 to 3.0; loading the others takes longest


@pytest.mark.parametrize("made", [own_documents.every_style, own_documents.every_format])
async def test_every_parameter_style_arrives_correctly(made: Any, tmp_path: Path):
    file = tmp_path / "document.json"
    file.write_text(json.dumps(made()))
    for seed in range(8 if ALL else 2):
        report = await call_all(file, seed=1000 * seed)
        assert report.wrong == []
        assert report.called == report.operations >= 10


def chosen() -> list[Path]:
    return [path for path in documents() if ALL or path.stat().st_size < SMALL]


@pytest.mark.parametrize("path", chosen(), ids=lambda path: path.name)
async def test_operations_of_real_documents_arrive_as_specified(path: Path):
    report = await call_all(path, every=1 if ALL else 20)
    assert report.wrong == []
    assert report.called >= report.operations // 20


def test_real_documents_are_available():
    if not SHARED.is_dir():
        pytest.skip(f"the real documents are missing: {SHARED} is absent")
    assert len(documents()) >= 12


GOOD = Arrived("GET", "/base/v1/x/a%2Fb?q=1&q=2", [("host", "h"), ("x-h", "v")], b"")
GIVEN = {("path", "id"): "a/b", ("query", "q"): [1, 2], ("header", "X-H"): "v"}


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "POST"},
        {"target": "/base/v1/x/a/b?q=1&q=2"},
        {"target": "/base/v1/x/a%2Fc?q=1&q=2"},
        {"target": "/base/x/a%2Fb?q=1&q=2"},
        {"target": "/base/v1/x/a%2Fb?q=1,2"},
        {"target": "/base/v1/x/a%2Fb?q=1"},
        {"target": "/base/v1/x/a%2Fb?q=2&q=1"},
        {"target": "/base/v1/x/a%2Fb?q=1&q=2&more=1"},
        {"headers": [("host", "h")]},
        {"headers": [("host", "h"), ("x-h", "w")]},
        {"headers": [("host", "h"), ("x-h", "v"), ("x-i", "v")]},
        {"headers": [("host", "h"), ("x-h", "v"), ("host", "i")]},
        {"headers": [("host", "h"), ("x-h", "v"), ("cookie", "a=b")]},
        {"body": b"{}"},
    ],
)
def test_wrong_request_is_noticed(changed: dict[str, Any]):
    parameters = [
        {"name": "id", "in": "path", "required": True},
        {"name": "q", "in": "query", "required": True},
        {"name": "X-H", "in": "header"},
    ]
    wanted = prescriptions({"paths": {"/x/{id}": {"get": {"parameters": parameters}}}})["GET", "/x/{id}"]
    assert wanted.check(GOOD, GIVEN, None, "/base/v1") == []
    assert wanted.check(GOOD._replace(**changed), GIVEN, None, "/base/v1") != []

"""A large document is read in its own process: the same comes out, no one waits, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix.openapi.api_server import DOCUMENT
from tests.timing import within
from toolway import Hub
from toolway.parts.openapi import document_source
from toolway.parts.openapi.document import subprocess_main
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import ALL_OPERATIONS, InvalidDocument, OperationFilter, OperationSelection
from toolway.parts.openapi.document_source import SubprocessUnavailable, parse_in_subprocess
from toolway.upstream.process.spawner import Spawner

pytestmark = pytest.mark.anyio


def large(count: int = 600) -> bytes:
    look = DOCUMENT["paths"]["/look"]["get"]
    huge = {"name": "n", "in": "query", "schema": {"type": "integer", "maximum": 10**30, "minimum": -(2**63)}}
    look = {**look, "parameters": [*look["parameters"], huge]}
    paths = {f"/p{n}/{{id}}": {"get": look | {"operationId": f"p{n}"}} for n in range(count)}
    security = {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}
    components = {"securitySchemes": security}
    return json.dumps({**DOCUMENT, "paths": {**DOCUMENT["paths"], **paths}, "components": components}).encode()


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    made = Spawner()
    yield made
    await made.close()


async def test_subprocess_parses_the_same_document(spawner: Spawner):
    data = large()
    for choose in (ALL_OPERATIONS, OperationSelection(exclude=OperationFilter(methods=("post",)))):
        given = frozenset({"word"})
        found = await parse_in_subprocess(data, "here", choose, given, spawner, os.environ)
        assert found == load_document(data, source="here", selection=choose, user_supplied=given)
        assert found.operations


async def test_subprocess_reports_the_same_parse_error(spawner: Spawner):
    for data in (b"<html>", b"7", b"openapi: [", b'{"openapi": "3.0.0", "paths": ' + b"[" * 5000):
        with pytest.raises(InvalidDocument) as here:
            load_document(data, source="here")
        with pytest.raises(InvalidDocument) as there:
            await parse_in_subprocess(data, "here", ALL_OPERATIONS, frozenset(), spawner, os.environ)
        assert (here.value.reason, here.value.hint) == (there.value.reason, there.value.hint)


async def test_document_over_cpu_limit_is_rejected(spawner: Spawner, monkeypatch: Any, tmp_path: Path):
    bounded = tmp_path / "program.py"
    source = Path(subprocess_main.__file__).read_text()
    monkeypatch.setattr(subprocess_main, "__file__", str(bounded))
    limit = "MAX_CPU_SECONDS = 1"
    lines = [limit if line.startswith("MAX_CPU_SECONDS = ") else line for line in source.splitlines()]
    assert limit in lines
    bounded.write_text("\n".join(lines))
    with pytest.raises(InvalidDocument, match="takes too"):
        await asyncio.wait_for(
            parse_in_subprocess(large(5000), "here", ALL_OPERATIONS, frozenset(), spawner, os.environ), 60
        )


async def test_truncated_subprocess_output_is_rejected(spawner: Spawner, monkeypatch: Any, tmp_path: Path):
    dying = tmp_path / "program.py"
    source = Path(subprocess_main.__file__).read_text()
    monkeypatch.setattr(subprocess_main, "__file__", str(dying))
    last = "        _send_frame(sink, encode(operation))\n"
    for end in ("break", "sys.exit(3)", "sink.write(b'\\0\\0')"):
        assert source.count(last) == 1
        dying.write_text(source.replace(last, f"{last}        {end}\n"))
        with pytest.raises(SubprocessUnavailable):
            await parse_in_subprocess(large(5), "here", ALL_OPERATIONS, frozenset(), spawner, os.environ)


async def test_cancelled_parse_returns_at_once_and_closes_pipes(spawner: Spawner):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(
            parse_in_subprocess(large(5000), "x", ALL_OPERATIONS, frozenset(), spawner, os.environ), 0.3
        )
    assert time.monotonic() - began < within(3)
    for _ in range(100):
        await asyncio.sleep(0.05)
        if not before or len(os.listdir("/proc/self/fd")) <= before + 2:  # the way to the keeper stays
            break
    else:
        raise AssertionError("pipes are left")


async def test_document_is_parsed_in_process_without_subprocess(monkeypatch: Any, tmp_path: Path):
    file = tmp_path / "api.json"
    file.write_bytes(large())
    assert file.stat().st_size > document_source.MIN_SUBPROCESS_BYTES
    for executable in ("/no/such/python", "/bin/false", sys.executable):
        monkeypatch.setattr(sys, "executable", executable)
        entry = {"url": "http://127.0.0.1:9/", "openapi": str(file)}
        async with Hub({"api": entry}, catalog_storage=None) as hub:
            await hub._core.servers.wait_first_starts(20)
            assert "cannot connect" in hub.status()["api"].why  # which comes after the document was read

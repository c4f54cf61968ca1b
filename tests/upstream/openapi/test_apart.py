"""A large document is read in a process of its own: the same comes out, nobody waits, and nothing is left behind."""

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

from tests.faults.matrix.b_api import DOCUMENT
from toolway import Hub
from toolway.openapi import program
from toolway.openapi.choice import EVERYTHING, Choice, Picks
from toolway.openapi.load import load
from toolway.openapi.problems import BadDocument
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.transports.openapi import apart
from toolway.upstream.transports.openapi.apart import NotApart, read_apart

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


async def test_what_comes_out_is_what_the_reader_says(spawner: Spawner):
    data = large()
    for choose in (EVERYTHING, Choice(exclude=Picks(methods=("post",)))):
        given = frozenset({"word"})
        found = await read_apart(data, "here", choose, given, spawner, os.environ)
        assert found == load(data, where="here", choose=choose, given=given)
        assert found.operations


async def test_why_a_document_is_none_comes_out_as_well(spawner: Spawner):
    for data in (b"<html>", b"7", b"openapi: [", b'{"openapi": "3.0.0", "paths": ' + b"[" * 5000):
        with pytest.raises(BadDocument) as here:
            load(data, where="here")
        with pytest.raises(BadDocument) as there:
            await read_apart(data, "here", EVERYTHING, frozenset(), spawner, os.environ)
        assert (here.value.reason, here.value.fix) == (there.value.reason, there.value.fix)


async def test_a_document_that_takes_too_much_is_given_up(spawner: Spawner, monkeypatch: Any, tmp_path: Path):
    bounded = tmp_path / "program.py"
    source = Path(program.__file__).read_text()
    monkeypatch.setattr(program, "__file__", str(bounded))
    limit = "MOST_SECONDS = 1"
    lines = [limit if line.startswith("MOST_SECONDS = ") else line for line in source.splitlines()]
    assert limit in lines
    bounded.write_text("\n".join(lines))
    with pytest.raises(BadDocument, match="takes too"):
        await asyncio.wait_for(read_apart(large(5000), "here", EVERYTHING, frozenset(), spawner, os.environ), 60)


async def test_a_process_that_ends_in_the_middle_has_said_nothing(spawner: Spawner, monkeypatch: Any, tmp_path: Path):
    dying = tmp_path / "program.py"
    source = Path(program.__file__).read_text()
    monkeypatch.setattr(program, "__file__", str(dying))
    last = "        _send(sink, encode(operation))\n"
    for end in ("break", "sys.exit(3)", "sink.write(b'\\0\\0')"):
        assert source.count(last) == 1
        dying.write_text(source.replace(last, f"{last}        {end}\n"))
        with pytest.raises(NotApart):
            await read_apart(large(5), "here", EVERYTHING, frozenset(), spawner, os.environ)


async def test_nobody_waits_for_a_process_that_is_given_up(spawner: Spawner):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_apart(large(5000), "x", EVERYTHING, frozenset(), spawner, os.environ), 0.3)
    assert time.monotonic() - began < 3
    for _ in range(100):
        await asyncio.sleep(0.05)
        if not before or len(os.listdir("/proc/self/fd")) <= before + 2:  # the way to the keeper stays
            break
    else:
        raise AssertionError("pipes are left")


async def test_where_there_is_no_such_process_the_document_is_read_here(monkeypatch: Any, tmp_path: Path):
    file = tmp_path / "api.json"
    file.write_bytes(large())
    assert file.stat().st_size > apart.LARGE
    for executable in ("/no/such/python", "/bin/false", sys.executable):
        monkeypatch.setattr(sys, "executable", executable)
        entry = {"url": "http://127.0.0.1:9/", "openapi": str(file)}
        async with Hub({"api": entry}, catalog_dir=None) as hub:
            await hub.wait_settled(20)
            assert "cannot connect" in hub.status()["api"].why  # which comes after the document was read

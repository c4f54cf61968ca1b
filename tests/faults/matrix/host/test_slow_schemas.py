"""Schemas that are slow to validate."""

from __future__ import annotations

import pytest

from tests.faults.fault_lab import ERAS, lab, odd_server
from tests.timing import within
from toolway import InvalidArguments, ProtocolError

pytestmark = [pytest.mark.anyio, pytest.mark.fault("D18")]

EVIL = "a" * 60 + "!"  # what the pattern backtracks on


@ERAS
async def test_slow_schema_is_set_aside_or_harmless(era: str) -> None:
    async with lab({}) as bench:
        await bench.add("bad", odd_server("bad_schemas", era=era))
        await bench.hub.wait_ready("bad", timeout=20)
        set_aside = {problem.split("'")[1] for problem in bench.hub.status()["bad"].problems}
        assert set_aside == {"elsewhere", "wide"}
        refused = await bench.call("bad.regex_in", {"text": EVIL})
        assert refused.expect(InvalidArguments, "no").seconds < within(1)
        for tool in ("doubling", "recursive", "deep"):
            assert (await bench.call(f"bad.{tool}", {"text": EVIL})).expect(None).seconds < within(1)
        broken = await bench.call("bad.regex_out", {"text": EVIL})
        assert broken.expect(ProtocolError, "yes").seconds < within(1)


@ERAS
@pytest.mark.alone
async def test_million_subschemas_are_rejected_without_delay(era: str) -> None:
    async with lab({}, memory=128) as bench:
        await bench.add("bad", odd_server("million_subschemas", era=era))
        await bench.hub.wait_ready("bad", timeout=20)
        assert any("million" in problem for problem in bench.hub.status()["bad"].problems)
        (await bench.call("bad.counter")).expect(None)

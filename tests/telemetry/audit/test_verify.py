"""Whatever is changed in a log is found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolway.telemetry.audit.records import Head, Row, chained, encoded
from toolway.telemetry.audit.verify import Altered, verify

ROWS = chained(Head(), [encoded("call.intent", 1e9, 1.0, {"call": f"c{n}", "server": "s"}) for n in range(20)])


def test_a_log_as_it_was_written_is_right() -> None:
    found = verify(ROWS)
    assert (found.records, found.first, found.head.seq, found.intents, found.open) == (20, 1, 20, 20, 20)
    assert verify([]).records == 0


@given(st.integers(0, 19), st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=300)
def test_a_flipped_bit_is_found_wherever_it_is(index: int, place: int, bit: int) -> None:
    row = ROWS[index]
    body = bytearray(row.body)
    body[place % len(body)] ^= 1 << bit
    rows = [*ROWS[:index], Row(row.seq, row.hash, bytes(body)), *ROWS[index + 1 :]]
    with pytest.raises(Altered) as caught:
        verify(rows)
    assert caught.value.seq == row.seq


@given(st.integers(0, 18))
def test_a_record_that_was_taken_out_is_found(index: int) -> None:
    with pytest.raises(Altered):
        verify(ROWS[:index] + ROWS[index + 1 :])


def test_a_record_that_was_written_again_with_a_fitting_hash_is_found() -> None:
    forged = chained(Head(9, ROWS[8].hash), [encoded("call.intent", 1e9, 1.0, {"call": "other"})])
    with pytest.raises(Altered, match="tied to another"):
        verify([*ROWS[:9], *forged, *ROWS[10:]])


def test_records_in_another_order_are_found() -> None:
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    with pytest.raises(Altered):
        verify(shuffled)

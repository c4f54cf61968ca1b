"""Verification detects every change of a log."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolway.audit.sink import ChainHead, StoredRecord, encode_record, link_records
from toolway.audit.verify import TamperedLog
from toolway.parts.audit.verify import verify_log

ROWS = link_records(
    ChainHead(), [encode_record("call.intent", 1e9, 1.0, {"call": f"c{n}", "server": "s"}) for n in range(20)]
)


def test_unchanged_log_is_valid() -> None:
    found = verify_log(ROWS)
    assert (found.record_count, found.first_seq, found.head.seq, found.intent_count, found.open_intents) == (
        20,
        1,
        20,
        20,
        20,
    )
    assert verify_log([]).record_count == 0


@given(st.integers(0, 19), st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=300)
def test_flipped_bit_is_detected_anywhere(index: int, place: int, bit: int) -> None:
    row = ROWS[index]
    body = bytearray(row.body)
    body[place % len(body)] ^= 1 << bit
    rows = [*ROWS[:index], StoredRecord(row.seq, row.hash, bytes(body)), *ROWS[index + 1 :]]
    with pytest.raises(TamperedLog) as caught:
        verify_log(rows)
    assert caught.value.seq == row.seq


@given(st.integers(0, 18))
def test_removed_record_is_detected(index: int) -> None:
    with pytest.raises(TamperedLog):
        verify_log(ROWS[:index] + ROWS[index + 1 :])


def test_rewritten_record_with_valid_hash_is_detected() -> None:
    forged = link_records(ChainHead(9, ROWS[8].hash), [encode_record("call.intent", 1e9, 1.0, {"call": "other"})])
    with pytest.raises(TamperedLog, match="is not the hash of record"):
        verify_log([*ROWS[:9], *forged, *ROWS[10:]])


def test_reordered_records_are_detected() -> None:
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    with pytest.raises(TamperedLog):
        verify_log(shuffled)

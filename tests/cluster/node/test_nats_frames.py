"""Subjects and frames of calls over NATS, without NATS."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolway.cluster.nats_rpc import frames
from toolway.cluster.nats_rpc.frames import MAX_UNACKED_CHUNKS, ChunkedTransfer, TransferStalled
from toolway.cluster.nats_rpc.rpc_server import (
    GENERATION_LIFETIME_S,
    MAX_CACHED_REPLY_BYTES,
    MAX_GENERATION_BYTES,
    ReplyCache,
)
from toolway.cluster.routing.call_cipher import split_request


@given(st.binary(min_size=1, max_size=3000), st.integers(min_value=1, max_value=2000))
def test_chunks_reassemble_and_fit_the_payload_limit(data: bytes, payload: int) -> None:
    parts = list(frames.split_chunks(data, payload))
    assert len(parts) == frames.chunk_count(data, payload)
    assert all(len(part) <= max(payload, 32) for part in parts)
    gathering = frames.Reassembly(len(data))
    for part in parts:
        assert gathering.message is None
        assert gathering.add(part)
    assert gathering.message == data


@given(st.lists(st.tuples(st.integers(0, 10**15), st.binary(max_size=40)), min_size=1, max_size=5))
def test_batch_round_trips(some: list[tuple[int, bytes]]) -> None:
    packed = frames.encode_batch([str(id_) for id_, _ in some], [frame for _, frame in some])
    assert frames.decode_batch(packed) == [(str(id_), frame) for id_, frame in some]
    assert (
        len(packed)
        <= sum(len(frame) + frames.BATCH_ENTRY_OVERHEAD_BYTES for _, frame in some) + frames.FRAME_OVERHEAD_BYTES
    )


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\n",
        b"1 2",
        b"1 2\n",
        b"1 2\nx",
        b"1 2\nxyz",
        b"1\nx",
        b"1 1 2\nx",
        b"1  1\nx",
        b"-1 1\nx",
        b"1 +1\nx",
        b"1 1_0\n" + b"x" * 10,
        b"x 1\nx",
        b"1 1 \xb2 1\nxy",
        b"1" * (frames.MAX_DIGITS + 1) + b" 1\nx",
        b"1 " + b"9" * 5000 + b"\nx",
    ],
)
def test_invalid_batch_is_rejected_as_a_whole(wrong: bytes) -> None:
    with pytest.raises(frames.InvalidFrame):
        frames.decode_batch(frames.BATCH_FRAME + wrong)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_only_frame_errors(data: bytes) -> None:
    for read in (split_request, frames.Reassembly(100).add, frames.decode_ids, _unpacked):
        try:
            read(data)
        except (frames.InvalidFrame, OverflowError):
            pass


def _unpacked(data: bytes) -> object:
    return frames.decode_batch(frames.BATCH_FRAME + data)


@given(st.randoms(use_true_random=False))
def test_repeated_and_reordered_chunks_reassemble(dice: Random) -> None:
    data = bytes(range(256)) * 20
    parts = list(frames.split_chunks(data, frames.FRAME_OVERHEAD_BYTES + 100))
    order = sorted(range(len(parts)), key=lambda number: number + dice.random() * (frames.MAX_EARLY_CHUNKS - 1))
    gathering = frames.Reassembly(len(data))
    for number in order:
        assert gathering.add(parts[number])
        assert not gathering.add(parts[dice.choice(order[: order.index(number) + 1])])
    assert gathering.message == data


def test_missing_or_excess_chunks_are_rejected() -> None:
    parts = list(frames.split_chunks(b"x" * 2000, frames.FRAME_OVERHEAD_BYTES + 100))
    for wrong in (parts[frames.MAX_EARLY_CHUNKS + 1], b"C0\nx", b"C1\n", b"C-1\nx", b"C1\n" + b"x" * 1901):
        gathering = frames.Reassembly(2000)
        assert gathering.add(parts[0])
        with pytest.raises(frames.InvalidFrame):
            gathering.add(wrong)
    with pytest.raises(OverflowError):
        frames.Reassembly(1999).add(parts[0])


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "toolway.a.reply.x",
        "toolway.a.news.x.1",
        "toolway.a.reply.x.y",
        "toolway.a.reply.x.1.2",
        "toolway.b.reply.x.1",
    ],
)
@pytest.mark.attack("held-79")
def test_other_subjects_are_not_reply_subjects(subject: str) -> None:
    assert frames.Subjects("toolway.a").parse_reply_subject(subject) is None


def test_reply_subject_names_node_and_call() -> None:
    subjects = frames.Subjects("toolway.a")
    assert subjects.parse_reply_subject(subjects.reply_prefix("node-1") + "17") == ("node-1", "17")
    assert subjects.parse_reply_subject(subjects.reply_prefix("node-1") + frames.CONTROL_ID_PREFIX + "17") == (
        "node-1",
        "17",
    )


def test_cached_replies_expire_and_are_bounded() -> None:
    kept = ReplyCache()
    kept.add("a", b"1", 100.0)
    kept.add("b", b"x" * (MAX_CACHED_REPLY_BYTES + 1), 100.0)
    assert (kept.get("a"), kept.get("b"), "b" in kept) == (b"1", None, True)
    kept.add("c", b"2", 100.0 + GENERATION_LIFETIME_S)
    assert "a" in kept
    kept.add("d", b"3", 101.0 + 3 * GENERATION_LIFETIME_S)
    assert "a" not in kept and "c" not in kept and "d" in kept
    for number in range(10 * MAX_GENERATION_BYTES // MAX_CACHED_REPLY_BYTES):
        kept.add(str(number), b"x" * MAX_CACHED_REPLY_BYTES, 110.0)
    assert (
        sum(len(kept.get(str(n)) or b"") for n in range(10 * MAX_GENERATION_BYTES // MAX_CACHED_REPLY_BYTES))
        <= 2 * MAX_GENERATION_BYTES
    )


async def _transfer(transfer: ChunkedTransfer, sent: list[bytes], size: int) -> None:
    async def publish(piece: bytes) -> None:
        sent.append(piece)

    await transfer.send(b"x" * size, 10_000, publish, lambda: None)


@pytest.mark.anyio
async def test_stalled_transfer_frees_the_window_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.cluster.nats_rpc.frames.ACK_TIMEOUT_S", 0.2)
    window = asyncio.Semaphore(MAX_UNACKED_CHUNKS)
    deaf, good = ChunkedTransfer(window), ChunkedTransfer(window)
    to_deaf: list[bytes] = []
    to_good: list[bytes] = []
    stuck = asyncio.create_task(_transfer(deaf, to_deaf, 100_000))
    await asyncio.sleep(0.05)
    other = asyncio.create_task(_transfer(good, to_good, 50_000))
    await asyncio.sleep(0.05)
    assert (len(to_deaf), to_good) == (MAX_UNACKED_CHUNKS, [])
    with pytest.raises(TransferStalled):
        await stuck
    while not other.done():
        await asyncio.sleep(0)
        good.acknowledge()
    await other
    assert len(to_good) == frames.chunk_count(b"x" * 50_000, 10_000)
    good.acknowledge()  # once too often
    async with asyncio.timeout(30):
        for _ in range(MAX_UNACKED_CHUNKS):
            await window.acquire()
    assert window.locked()

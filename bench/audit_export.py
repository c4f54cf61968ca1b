"""Time of signed exports: `python -m bench.audit_export [RECORDS]` signs, checks and proves a log of that size."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from toolway.audit.chain import MAX_RECORDS_PER_WRITE, AuditChain
from toolway.audit.log import create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.signing import load_signer
from toolway.audit.sink import encode_record
from toolway.config.settings import AuditSettings
from toolway.parts.audit.queries import AuditQuery
from toolway.parts.audit.signed_export import SelectedRecords, check_file, write_export, write_proofs

T = TypeVar("T")


def _timed(name: str, work: Callable[[], T]) -> T:
    started, cpu = time.perf_counter(), time.process_time()
    found = work()
    print(f"{name}: {time.perf_counter() - started:.3f} s, {time.process_time() - cpu:.3f} s of CPU time")
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        settings = AuditSettings().with_folder(Path(folder))
        signer, macs = load_signer(settings, create=True), RecordMacs.load(settings)
        chain = AuditChain(create_sink(settings), macs)
        chain.open()
        fields = {"caller": "key:ci", "server": "bank", "tool": "pay", "outcome": "ok", "attempts": 1}
        for first in range(0, count, MAX_RECORDS_PER_WRITE):
            numbers = range(first, min(first + MAX_RECORDS_PER_WRITE, count))
            chain.write([encode_record("call.outcome", 1.7e9 + n, n, {"call": f"c{n}", **fields}) for n in numbers])
        chain.close()
        sink = create_sink(settings, read_only=True)
        sink.open()
        selected, out = SelectedRecords(sink, AuditQuery(kind="call"), macs), io.BytesIO()
        facts = {"time": "2026-11-17T00:00:00.000000Z", "key": signer.public.id}
        lines = [line for _, line in _timed("read and verify the log", lambda: list(selected.lines()))]
        sink.close()
        _timed(
            f"sign {len(lines):,} records",
            lambda: write_export(lines, out, lambda size, root: {**facts, "size": size, "root": root}, signer.sign),
        )
        _timed("check the export", lambda: check_file(io.BytesIO(out.getvalue()), signer.public))
        [proof] = _timed("prove one record", lambda: write_proofs(io.BytesIO(out.getvalue()), f"c{count // 2}"))
        _timed("check the proof", lambda: check_file(io.BytesIO(proof + b"\n"), signer.public))
        hashes = len(json.loads(proof)["path"])
        print(f"a proof has {hashes} hashes and {len(proof):,} bytes, the export {len(out.getvalue()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

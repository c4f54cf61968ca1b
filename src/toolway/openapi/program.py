"""The reader as a program: a document on stdin, what it says on stdout.

    python -I program.py FOLDER-OF-TOOLWAY < request > answer

A large document takes seconds, in which a thread would slow down everybody else in the process; and what a document is
made to cost is bounded here by the system itself. The request is a line of JSON and the document; the answer is frames
(length, JSON): the document without its operations, then each of them; or why it cannot be read.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, BinaryIO

MOST_SECONDS = 60  # of a processor: the largest documents known take two
MOST_BYTES = 2 << 30  # of memory, loaded libraries included: they take 300 MB


def main() -> None:
    _bound()
    sys.path.insert(0, sys.argv[1])
    import msgspec

    from toolway.openapi.choice import Choice
    from toolway.openapi.load import load
    from toolway.openapi.problems import BadDocument

    source, sink = sys.stdin.buffer, sys.stdout.buffer
    where, choose, given = msgspec.json.decode(source.readline(), type=tuple[str, Choice, frozenset[str]])
    encode = msgspec.json.Encoder().encode  # MessagePack has no numbers beyond 64 bits, and schemas do
    try:
        document = load(source.read(), where=where, choose=choose, given=given)
    except BadDocument as exc:
        _send(sink, encode({"reason": exc.reason, "fix": exc.fix}))
        return
    except MemoryError:
        _send(sink, encode({"reason": f"{where} takes too much memory to be read", "fix": ""}))
        return
    fields: dict[str, Any] = {name: getattr(document, name) for name in document.__dataclass_fields__}
    _send(sink, encode({"document": {**fields, "operations": ()}, "count": len(document.operations)}))
    for operation in document.operations:
        _send(sink, encode(operation))


def _bound() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has these limits
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def _send(sink: BinaryIO, frame: bytes) -> None:
    sink.write(len(frame).to_bytes(4, "big") + frame)


if __name__ == "__main__":
    main()

"""OpenAPI parser as a subprocess: a document on stdin, its operations on stdout.

    python -I program.py FOLDER-OF-TOOLWAY < request > answer

A large document takes seconds, in which a thread would slow down the whole process. In a subprocess the operating
system bounds the cost of a hostile document. The request is a line of JSON followed by the document. The answer is
frames (length, JSON): the document without its operations, then each operation; or the reason why the document is
unreadable.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, BinaryIO

MAX_CPU_SECONDS = 60  # CPU time; the largest known documents take two
MAX_MEMORY_BYTES = 2 << 30  # memory, including loaded libraries; the largest known documents take 300 MB


def main() -> None:
    """Read the request from stdin, parse the document and write the answer to stdout."""
    sys.path.insert(0, sys.argv[1])
    _set_limits()
    import msgspec

    from toolway.parts.openapi.document.loader import load_document
    from toolway.parts.openapi.document.models import InvalidDocument, OperationSelection

    source, sink = sys.stdin.buffer, sys.stdout.buffer
    location, selection, user_supplied = msgspec.json.decode(
        source.readline(), type=tuple[str, OperationSelection, frozenset[str]]
    )
    encode = msgspec.json.Encoder().encode  # MessagePack has no numbers beyond 64 bits, but schemas have
    try:
        document = load_document(source.read(), source=location, selection=selection, user_supplied=user_supplied)
    except InvalidDocument as exc:
        _send_frame(sink, encode({"reason": exc.reason, "fix": exc.hint}))
        return
    except MemoryError:
        _send_frame(sink, encode({"reason": f"{location} takes too much memory to parse", "fix": ""}))
        return
    fields: dict[str, Any] = {name: getattr(document, name) for name in document.__dataclass_fields__}
    _send_frame(sink, encode({"document": {**fields, "operations": ()}, "count": len(document.operations)}))
    for operation in document.operations:
        _send_frame(sink, encode(operation))


def _set_limits() -> None:
    from toolway._os import limit_own_resources

    with contextlib.suppress(ValueError, OSError):  # some systems lack these limits
        limit_own_resources(MAX_MEMORY_BYTES, MAX_CPU_SECONDS)


def _send_frame(sink: BinaryIO, frame: bytes) -> None:
    sink.write(len(frame).to_bytes(4, "big") + frame)


if __name__ == "__main__":
    main()

"""Program of the child process of `ExpressionProcess`.

    python -I expression_child.py FOLDER-OF-TOOLWAY

An empty line says that the process is ready. A request is a line of JSON: the expression, the names that it may use,
the data. Its answer is a line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def main() -> None:
    """Evaluate the expressions that arrive on stdin, and write the results to stdout, until stdin ends."""
    sys.path.insert(0, sys.argv[1])
    from toolway._os import limit_cpu_of_turn, limit_own_resources
    from toolway.workflows.expression_process import CPU_SECONDS, MAX_MEMORY_BYTES, MAX_REPLY_BYTES
    from toolway.workflows.expressions import ExpressionError, _compile_cel, to_json

    _compile_cel("true", frozenset())  # loads the runtime, so the first expression is not charged for its time
    limit_own_resources(MAX_MEMORY_BYTES)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    compiled: dict[tuple[str, tuple[str, ...]], Callable[[Mapping[str, Any]], Any]] = {}
    for line in sys.stdin.buffer:
        expression, variables, values = json.loads(line)
        limit_cpu_of_turn(CPU_SECONDS)  # ends the process
        try:
            key = (expression, tuple(variables))
            if key not in compiled:
                compiled[key] = _compile_cel(expression, frozenset(variables))
            reply = {"value": to_json(compiled[key](values), expression)}
        except (ExpressionError, MemoryError) as exc:
            reply = {"error": getattr(exc, "detail", "") or "too much memory"}
        data = json.dumps(reply).encode()
        limit_cpu_of_turn(0)
        sys.stdout.buffer.write((data if len(data) < MAX_REPLY_BYTES else b'{"error": "too large"}') + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

"""A server without a handshake, as users write it from a template: two methods, one JSON object a line.

It knows nothing of MCP but `tools/list` and `tools/call`, returns whatever its functions return, and answers every
line, notifications too. With `--log FILE` it writes each line that it reads to a file. With `--handshake` as the last
argument it knows `initialize` as well, and its results stay what they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def create_issue(title: str, number: int = 123) -> Any:
    return {"url": f"https://tracker.example/{title}", "number": number}


def result_field(**arguments: Any) -> Any:
    return {"result_field": "value", **arguments}


def many() -> Any:
    return [1, {"two": 2}]


def nothing() -> Any:
    return None


def explode() -> Any:
    raise RuntimeError("boom")


TOOLS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (create_issue, result_field, many, nothing, explode)
}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    method, params = request.get("method"), request.get("params", {})
    if method == "tools/list":
        result: Any = {
            "tools": [
                {"name": name, "description": name, "inputSchema": {"type": "object", "properties": {}}}
                for name in TOOLS
            ]
        }
    elif method == "initialize" and sys.argv[-1] == "--handshake":
        version = params["protocolVersion"]
        result = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "t", "version": "1"},
        }
    elif method == "tools/call":
        result = TOOLS[params.get("tool") or params["name"]](**params["arguments"])
    else:
        error = {"code": -32601, "message": f"Method not found: {method}"}
        return {"jsonrpc": "2.0", "id": request.get("id"), "error": error}
    return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}


def main() -> None:
    log = open(sys.argv[2], "a") if sys.argv[1:2] == ["--log"] else None  # noqa: SIM115
    for line in sys.stdin:
        if log is not None:
            log.write(line)
            log.flush()
        try:
            request = json.loads(line)
        except ValueError:
            response: dict[str, Any] = {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32700, "message": "Parse error"},
            }
        else:
            try:
                response = handle(request)
            except Exception as exc:
                error = {"code": -32603, "message": f"Internal error: {exc}"}
                response = {"jsonrpc": "2.0", "id": request.get("id"), "error": error}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()

"""A stdio server with the tools of a JSON file, which a test may change; it logs every call that reaches it.

python tests/hub/schema_server.py TOOLS.json CALLS.log
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    tools, log = Path(sys.argv[1]), Path(sys.argv[2])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], **_answer(message, tools, log)}
            print(json.dumps(answer), flush=True)


def _answer(message: dict[str, Any], tools: Path, log: Path) -> dict[str, Any]:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "schemas", "version": "1"}
        return {
            "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
        }
    if method == "tools/list":
        return {"result": {"tools": json.loads(tools.read_text())}}
    if method == "tools/call":
        with log.open("a") as file:
            print(json.dumps(params["arguments"]), file=file)
        return {"result": {"content": [{"type": "text", "text": "done"}]}}
    return {"error": {"code": -32601, "message": "unknown method"}}


if __name__ == "__main__":
    main()

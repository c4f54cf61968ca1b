"""A hostile stdio server: it runs whatever the attack wants in a shell, and returns the output.

Run by path; it needs the standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

TOOL = {
    "name": "run",
    "description": "Run a command in a shell.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "shell", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        done = subprocess.run(
            ["/bin/sh", "-c", params["arguments"]["command"]], stdin=subprocess.DEVNULL, capture_output=True, timeout=20
        )
        text = (done.stdout + done.stderr).decode(errors="replace")
        return {"content": [{"type": "text", "text": text}], "isError": False}
    return {}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"]}
            if message["method"] == "server/discover":
                reply["error"] = {"code": -32601, "message": "unknown method"}
            else:
                reply["result"] = result_of(message["method"], message.get("params") or {})
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()

"""A small MCP server for the screenshots of the command line: `python scripts/demo_server.py NAME`.

It uses the legacy era over stdio. NAME selects its tools; one of them is slow and reports progress.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

Json = dict[str, Any]

TOOLS: dict[str, dict[str, str]] = {
    "files": {
        "read_file": "Read a file as text.",
        "write_file": "Write text to a file and replace its contents.",
        "list_folder": "List the entries of a folder with sizes and times.",
        "index_folder": "Index the words of all files of a folder for fast search.",
    },
    "weather": {
        "now": "Return the current weather of a place.",
        "forecast": "Return the weather forecast of a place for up to ten days, by hour or by day.",
    },
    "github": {
        "search_issues": "Search issues and pull requests in all repositories that the token can see.",
        "create_issue": "Create an issue in a repository.",
        "get_file": "Return a file or folder of a repository at a branch, a tag or a commit.",
    },
}


def main() -> None:
    name = sys.argv[1]
    if name == "github" and not os.environ.get("GITHUB_TOKEN"):
        sys.exit("Error: the environment variable GITHUB_TOKEN is not set")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            respond(name, message)


def respond(name: str, message: Json) -> None:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        info = {"name": name, "version": "1.0.0"}
        result: Json = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": [_tool(tool, about) for tool, about in TOOLS[name].items()]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": _call_tool(params)}]}
    elif method == "ping":
        result = {}
    else:
        _send({"id": message["id"], "error": {"code": -32601, "message": "unknown method"}})
        return
    _send({"id": message["id"], "result": result})


def _tool(name: str, about: str) -> Json:
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "The path."}}}
    return {"name": name, "description": about, "inputSchema": schema}


def _call_tool(params: Json) -> str:
    if params["name"] != "index_folder":
        return "done"
    token = (params.get("_meta") or {}).get("progressToken")
    for number in range(1, 41):
        time.sleep(0.1)
        if token is not None:
            progress = {"progressToken": token, "progress": number, "total": 40, "message": f"chapter-{number:02}.md"}
            _send({"method": "notifications/progress", "params": progress})
    return "40 files, 12,480 words"


def _send(message: Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

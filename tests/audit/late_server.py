"""MCP server that answers a call after half a second, even if the call is cancelled."""

import json
import sys
import threading

TOOL = {"name": "slow", "inputSchema": {"type": "object"}}
INFO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "late", "version": "1"}}
RESULTS = {"initialize": INFO, "tools/list": {"tools": [TOOL]}, "ping": {}}


def write_message(id_: object, body: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id_, **body}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "tools/call":
        answer = {"result": {"content": [{"type": "text", "text": "canary-in-an-answer"}]}}
        threading.Timer(0.5, write_message, (message["id"], answer)).start()
    elif message["method"] in RESULTS:
        write_message(message["id"], {"result": RESULTS[message["method"]]})
    else:
        write_message(message["id"], {"error": {"code": -32601, "message": "no such method"}})

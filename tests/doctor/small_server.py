"""A stdio server of a few lines, with the tools of a JSON file.

Other servers of the table are made of it: they do something first, and then become this one.
"""

import json
import sys


def answer(method, tools):
    """The result of a request; None where the method is unknown."""
    if method == "initialize":
        info = {"name": "small", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": tools}
    return {} if method == "ping" else None


def reply(message, tools):
    """The whole answer to a message; None where it wants none."""
    if "id" not in message:
        return None
    result = answer(message.get("method"), tools)
    if result is None:
        error = {"code": -32601, "message": "no such method"}
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def main():
    tools = [{"name": "hello", "description": "Say hello.", "inputSchema": {"type": "object"}}]
    if len(sys.argv) > 1 and sys.argv[1].endswith(".json"):
        with open(sys.argv[1]) as file:
            tools = json.load(file)
    for line in sys.stdin:
        said = reply(json.loads(line), tools)
        if said is not None:
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()

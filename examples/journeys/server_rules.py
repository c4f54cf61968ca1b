"""Servers from a template, and the rules for using them: checked arguments, secrets in .env, and honest failures."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from toolway import CallTimeout, Hub, InvalidArguments

SERVER = """
import json, os, sys, time

SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}

def send(to):
    if to == "nobody":
        time.sleep(60)
    return {"sent": to, "by": os.environ["SENDER"]}

for line in sys.stdin:
    request = json.loads(line)
    reply = {"jsonrpc": "2.0", "id": request.get("id")}
    if request["method"] == "tools/list":
        reply["result"] = {"tools": [{"name": "send", "description": "Send a letter.", "inputSchema": SCHEMA}]}
    elif request["method"] == "tools/call":
        reply["result"] = send(**request["params"]["arguments"])
    else:
        reply["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(reply), flush=True)
"""  # it knows two methods and no handshake, as many servers written from a template


async def main(folder: Path) -> None:
    (folder / "server.py").write_text(SERVER)
    (folder / ".env").write_text("SENDER=letters@example.org\n")
    entry = {"command": sys.executable, "args": [str(folder / "server.py")], "env": {"SENDER": "${SENDER}"}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"email": {**entry, "envFile": str(folder / ".env")}}}))
    async with Hub(folder / "mcp.json") as hub:
        print((await hub.call_tool("email.send", {"to": "ann"})).data)  # {'sent': 'ann', 'by': 'letters@example.org'}
        try:
            await hub.call_tool("email.send", {"recipient": "ann"})
        except InvalidArguments as error:
            print(error.executed, error.violations[0])  # no $.to is missing, expected a string
        try:
            await hub.call_tool("email.send", {"to": "nobody"}, timeout=0.5)
        except CallTimeout as error:
            print(error.executed, error.code)  # unknown E-TIMEOUT


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))

from toolway import Hub

with Hub.sync("examples/mcp.json") as hub:
    reply = hub.call_tool("demo.add", {"a": 1, "b": 2})
    print(reply.text)

from toolway import SyncHub

with SyncHub("examples/mcp.json") as hub:
    result = hub.call_tool("demo.add", {"a": 1, "b": 2})
    print(result.text)

import sys

from toolway import CallError, SyncHub

servers = {"demo": f"{sys.executable} -m toolway.testing.stdio_main"}  # commands or URLs; SyncHub("mcp.json") works too

with SyncHub(servers) as hub:
    print(hub.call_tool("demo.add", {"a": 1, "b": 2}).text)  # 3
    try:
        hub.call_tool("demo.sleep", {"seconds": 60}, timeout=0.5)
    except CallError as error:
        print(error.message, "- executed:", error.executed)  # demo.sleep timed out after 0.5 s - executed: unknown

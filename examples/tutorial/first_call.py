from toolway import SyncHub

with SyncHub({"demo": "python -m toolway.testing.stdio_main"}) as hub:
    for tool in hub.list_tools():
        print(tool.qualified_name)
    result = hub.call_tool("demo.add", {"a": 1, "b": 2})
    print(result.text, result.structured_content)

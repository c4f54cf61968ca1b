from toolway import CallTimeout, InvalidArguments, NotFound, SyncHub

with SyncHub({"demo": "python -m toolway.testing.stdio_main"}) as hub:
    try:
        hub.call_tool("demo.ad", {"a": 1, "b": 2})
    except NotFound as error:
        print(error.hint)
    try:
        hub.call_tool("demo.add", {"a": 1, "b": "two"})
    except InvalidArguments as error:
        print(error.violations[0].path, error.violations[0].problem, "- executed:", error.executed)
    try:
        hub.call_tool("demo.sleep", {"seconds": 60}, timeout=0.2)
    except CallTimeout as error:
        print(error.code, "- executed:", error.executed)

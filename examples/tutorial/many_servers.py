import asyncio

from toolway import Hub, ServerUnavailable

SERVERS = {
    "red": "python -m toolway.testing.stdio_main",
    "blue": "python -m toolway.testing.stdio_main",
    "broken": "no-such-program --serve",
}


async def main() -> None:
    async with Hub(SERVERS) as hub:
        calls = [hub.call_tool(f"{name}.add", {"a": n, "b": 1}) for n in range(3) for name in ("red", "blue")]
        print([result.text for result in await asyncio.gather(*calls)])
        try:
            await hub.call_tool("broken.add", {"a": 1, "b": 2})
        except ServerUnavailable as error:
            print(error.code, "executed:", error.executed)
            print(error.hint)
        for name, status in hub.status().items():
            print(name, "up" if status.is_up else "down")


asyncio.run(main())

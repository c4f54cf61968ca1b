import anyio

from toolway import Call, CallHandler, CallResult, Hub


async def limit_numbers(call: Call, next: CallHandler) -> CallResult:
    """Replace numbers above 100, and print each call with its result."""
    arguments = {name: min(value, 100) for name, value in call.arguments.items()}
    result = await next(call.with_arguments(arguments))
    print(call.server, call.tool, result.text)
    return result


async def main() -> None:
    async with Hub({"demo": "python -m toolway.testing.stdio_main"}, middleware=[limit_numbers]) as hub:
        await hub.call_tool("demo.add", {"a": 1, "b": 2000})


anyio.run(main)

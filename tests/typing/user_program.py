"""A program of a user over the public names. `mypy --strict` and pyright must accept it."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

from toolway import (
    AccessDenied,
    CallError,
    CallTimeout,
    ConfigError,
    HealthCheck,
    Hub,
    Limits,
    NetworkPolicy,
    OutcomeUnknown,
    RestartPolicy,
    RetryPolicy,
    Server,
    ServerLog,
    ServerStatus,
    SyncHub,
    Timeout,
    Tool,
    ToolError,
    ToolResult,
    ToolSettings,
)

SERVERS: dict[str, Server] = {
    "files": Server(
        command="uvx",
        args=("mcp-server-files", "--root", "/tmp"),
        timeout=Timeout(total=20.0),
        retry=RetryPolicy(max_attempts=3, initial_backoff=0.2),
        restart=RestartPolicy(max_restarts=5),
        health=HealthCheck(interval=30.0),
        limits=Limits(max_concurrent=4),
        tools={"read": ToolSettings(idempotent=True)},
    ),
    "docs": Server(url="https://docs.example/mcp"),
}


async def report(progress: float, total: float | None, message: str | None) -> None:
    print(progress, total, message)


def on_log(log: ServerLog) -> None:
    print(log.server, log.level, log.data)


async def main() -> int:
    async with Hub(
        SERVERS, timeout=30, log_callback=on_log, log_level="warning", network_policy=NetworkPolicy(("10.0.0.0/8",))
    ) as hub:
        tools: list[Tool] = await hub.list_tools(server="files")
        states: dict[str, ServerStatus] = hub.status()
        print([tool.qualified_name for tool in tools], [status.state for status in states.values()])
        try:
            result: ToolResult = await hub.call_tool("files.read", {"path": "a"}, progress_callback=report)
            print(result.text, result.duration)
            content = assert_type(result.structured_content, dict[str, Any] | list[Any] | str | float | bool | None)
            if isinstance(content, dict):
                print(content["path"])
        except OutcomeUnknown as exc:
            print("check before you repeat it:", exc.detail)
        except (CallTimeout, AccessDenied, ToolError) as exc:
            print(exc.message, exc.hint, exc.executed)
        except CallError as exc:
            return 1 if exc.executed == "no" else 2
        info = hub.server_info("files")
        print(info.version if info is not None else "not connected")
        contents = await hub.read_resource("file:///a", server="files")
        return len(contents.contents)


def blocking() -> str:
    try:
        with SyncHub("mcp.json", retry=RetryPolicy(max_attempts=1)) as hub:
            return hub.call_tool("docs.search", {"q": "x"}, idempotency_key="k", raise_on_error=False).text
    except ConfigError as exc:
        return exc.hint


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))

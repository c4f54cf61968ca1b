"""Fake MCP servers for tests. They behave well until a fault mode is set.

    from toolway.testing import FakeHttp, fake_server

    hub = Hub({"fake": fake_server("garbage", era="legacy")})        # a process
    async with FakeHttp(modes=["status=503;times=1"]) as server:     # a socket in this process
        hub = Hub({"fake": server.url})

`FakeWebSocket` is such a server at a ws:// address. List all fault modes with `python -m toolway.testing.stdio_main
--list-modes`, and in the same way those of `http_server` and `websocket_server`. Most of them trigger when the tool
`bad` is called, so a test can watch other calls next to it.

`FaultProxy` breaks the connection to any server. `History` with `check` verifies that every call of a run got exactly
one truthful result, and that the result reached the right caller.

`FakeLLM` is a fake model provider with scripted turns, in the wire formats of OpenAI, Anthropic, Gemini and Bedrock.
`FakeRegistry` is an MCP registry.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolway.testing.fake_llm import FakeLLM, LLMFault, LLMRequest, ToolOutput, ToolUse, Turn
    from toolway.testing.fake_registry import FakeRegistry
    from toolway.testing.fault_proxy import Fault, FaultProxy, Flow
    from toolway.testing.history import History, check
    from toolway.testing.http_server import FakeHttp
    from toolway.testing.llm_formats import TokenUsage
    from toolway.testing.websocket_server import FakeWebSocket

__all__ = [
    "FakeHttp",
    "FakeLLM",
    "FakeRegistry",
    "FakeWebSocket",
    "Fault",
    "FaultProxy",
    "Flow",
    "History",
    "LLMFault",
    "LLMRequest",
    "TokenUsage",
    "ToolOutput",
    "ToolUse",
    "Turn",
    "check",
    "fake_server",
]

# Imported on first use: asyncio is slow to import, and the stdio server does not need it.
_MODULE_BY_NAME: Final = {
    "FakeHttp": "http_server",
    "FakeLLM": "fake_llm",
    "FakeRegistry": "fake_registry",
    "FakeWebSocket": "websocket_server",
    "Fault": "fault_proxy",
    "FaultProxy": "fault_proxy",
    "Flow": "fault_proxy",
    "History": "history",
    "LLMFault": "fake_llm",
    "LLMRequest": "fake_llm",
    "TokenUsage": "llm_formats",
    "ToolOutput": "fake_llm",
    "ToolUse": "fake_llm",
    "Turn": "fake_llm",
    "check": "history",
}


def fake_server(*modes: str, era: str = "both", **options: str | int | bool) -> dict[str, Any]:
    """Return a config file entry that starts a fake stdio server.

    `options` are the options of `python -m toolway.testing.stdio_main --help`, such as `tools=50` or
    `effects="/tmp/effects"`.
    """
    # Without the site module and user packages, Python starts in half the time.
    args = ["-I", "-S", os.path.join(os.path.dirname(__file__), "stdio_main.py"), "--era", era]
    for mode in modes:
        args += ["--mode", mode]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            args.append(flag)
        elif value is not False:
            args += [flag, str(value)]
    return {"command": sys.executable, "args": args}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'toolway.testing' has no attribute {name!r}")
    return getattr(import_module(f"toolway.testing.{_MODULE_BY_NAME[name]}"), name)

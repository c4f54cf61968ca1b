"""Fake MCP servers for tests: well behaved until told otherwise.

    from toolway.testing import FakeHttp, fake_server

    hub = Hub({"fake": fake_server("garbage", era="handshake")})     # a process
    async with FakeHttp(modes=["status=503;times=1"]) as server:     # a socket in this process
        hub = Hub({"fake": server.url})

All the ways to misbehave: `python -m toolway.testing.fake --list-modes`, `python -m toolway.testing.fake_http
--list-modes`. Most of them strike when the tool `bad` is called, so that other calls beside it can be watched.

`FaultProxy` breaks the connection to any server, and `History` with `check` tells whether every call of a run was
answered once, truthfully, and to the right caller.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolway.testing.fakes.http_server import FakeHttp
    from toolway.testing.fault_proxy import Fault, FaultProxy, Flow
    from toolway.testing.history import History, check

__all__ = ["FakeHttp", "Fault", "FaultProxy", "Flow", "History", "check", "fake_server"]

# Loaded when asked for, because asyncio is slow to import and the stdio server does without.
_HOMES: Final = {
    "FakeHttp": "fakes.http_server",
    "Fault": "fault_proxy",
    "FaultProxy": "fault_proxy",
    "Flow": "fault_proxy",
    "History": "history",
    "check": "history",
}


def fake_server(*modes: str, era: str = "both", **options: str | int | bool) -> dict[str, Any]:
    """The entry of a configuration file that starts a fake stdio server.

    `options` are those of `python -m toolway.testing.fake --help`, such as `tools=50` or `effects="/tmp/effects"`.
    """
    # Without site and user packages it starts in half the time.
    args = ["-I", "-S", os.path.join(os.path.dirname(__file__), "fake.py"), "--era", era]
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
    if name not in _HOMES:
        raise AttributeError(f"module 'toolway.testing' has no attribute {name!r}")
    return getattr(import_module(f"toolway.testing.{_HOMES[name]}"), name)

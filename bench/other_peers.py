"""Start commands of the peers that are measured one after another.

Each is one process in the fastest mode that its documentation names, with request logs off.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.launch import Launch, LaunchContext, Server, servers_file, tool_name, write
from bench.wire import Endpoint

_FASTMCP = """
import asyncio, json, sys, uvicorn, uvloop
from fastmcp import Client
from fastmcp.server import create_proxy

async def serve(target, port):
    # Without a mode it uses the client's era to the server, which is faster if the server supports both.
    mode = {} if sys.argv[4] == "both" or isinstance(target, Client) else {"mode": "auto"}
    app = create_proxy(target, name="bench", **mode).http_app(path="/mcp", stateless_http=True, json_response=True)
    config = uvicorn.Config(
        app, port=port, loop="uvloop", http="httptools", log_level="error", access_log=False, ws="none"
    )
    await uvicorn.Server(config).serve()

async def main(servers, port, shared):
    if not shared:
        return await serve(servers, port)
    async with Client(servers) as client:
        await serve(client, port)

uvloop.run(main(json.load(open(sys.argv[1])), int(sys.argv[2]), sys.argv[3] == "shared"))
"""


def fastmcp_as(mode_name: str) -> Callable[[LaunchContext], Launch]:
    def launch(context: LaunchContext) -> Launch:
        script = write(context.folder / "serve.py", _FASTMCP)
        command = [
            str(context.home / "bin" / "python"),
            script,
            servers_file(context),
            str(context.port),
            mode_name,
            context.servers[0].era,
        ]
        env = {"FASTMCP_LOG_LEVEL": "ERROR", "FASTMCP_CHECK_FOR_UPDATES": "off"}
        naming = tool_name if len(context.servers) == 1 else (lambda server, tool: f"{server}_{tool}")
        return Launch(command, Endpoint(context.port), naming, env)

    return launch


def mcp_proxy_py(context: LaunchContext) -> Launch:
    base = [
        str(context.home / "bin" / "mcp-proxy"),
        "--port",
        str(context.port),
        "--log-level",
        "ERROR",
        "--pass-environment",
    ]
    return Launch([*base, "--", *context.servers[0].command], Endpoint(context.port, "/mcp"), tool_name)


def mcp_proxy_npm(context: LaunchContext) -> Launch:
    base = [
        str(context.home / "node_modules" / ".bin" / "mcp-proxy"),
        "--host",
        "127.0.0.1",
        "--port",
        str(context.port),
    ]
    return Launch(
        [*base, "--server", "stream", "--no-eventStore", "--", *context.servers[0].command],
        Endpoint(context.port),
        tool_name,
    )


def supergateway(context: LaunchContext) -> Launch:
    base = [
        str(context.home / "node_modules" / ".bin" / "supergateway"),
        "--stdio",
        shlex.join(context.servers[0].command),
    ]
    options = ["--outputTransport", "streamableHttp", "--stateful", "--port", str(context.port), "--logLevel", "none"]
    return Launch([*base, *options], Endpoint(context.port), tool_name)


def mcpo(context: LaunchContext) -> Launch:
    file = servers_file(context, "streamable-http")
    command = [str(context.home / "bin" / "mcpo"), "--host", "127.0.0.1", "--port", str(context.port), "--config", file]
    endpoint = Endpoint(context.port, f"/{context.servers[0].name}")
    return Launch([*command, "--log-level", "ERROR"], endpoint, tool_name)


def litellm(context: LaunchContext) -> Launch:
    def entry(one: Server) -> dict[str, object]:
        if one.url:
            return {"url": one.url, "transport": "http"}
        return {"transport": "stdio", "command": one.command[0], "args": list(one.command[1:])}

    settings = {
        "general_settings": {"master_key": "sk-bench", "mcp_advertised_versions": ["2025-11-25", "2026-07-28"]},
        "litellm_settings": {"telemetry": False},
        "mcp_servers": {one.name: entry(one) for one in context.servers},
        "model_list": [],
    }
    file = write(context.folder / "litellm.yaml", json.dumps(settings))  # JSON is YAML
    options = ["--config", file, "--host", "127.0.0.1", "--port", str(context.port), "--num_workers", "1"]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "DISABLE_ADMIN_UI": "True", "NO_DOCS": "True"}
    programs = {name for one in context.servers for name in one.command[:1]}
    env["LITELLM_ENABLE_MCP_STDIO"] = "true"
    env["LITELLM_MCP_STDIO_EXTRA_COMMANDS"] = ",".join(sorted(programs | {Path(name).name for name in programs}))
    endpoint = Endpoint(
        context.port, "/mcp/", {"Authorization": "Bearer sk-bench", "x-litellm-api-key": "Bearer sk-bench"}
    )
    command = [str(context.home / "bin" / "litellm"), *options]
    return Launch(command, endpoint, lambda server, tool: f"{server}-{tool}", env)


_FORGE_SECRET = "a-secret-of-the-benchmark-that-opens-nothing"
_FORGE_USER = "admin@example.com"


def contextforge(context: LaunchContext) -> Launch:
    env = {
        "DATABASE_URL": f"sqlite:///{context.folder}/forge.db",
        "CACHE_TYPE": "memory",
        "JWT_SECRET_KEY": _FORGE_SECRET,
        "AUTH_ENCRYPTION_SECRET": _FORGE_SECRET,
        "PLATFORM_ADMIN_EMAIL": _FORGE_USER,
        "LOG_LEVEL": "ERROR",
    }
    env |= dict.fromkeys(
        (
            "PLUGINS_ENABLED",
            "OBSERVABILITY_ENABLED",
            "RATE_LIMITING_ENABLED",
            "SSRF_PROTECTION_ENABLED",
            "STRUCTURED_LOGGING_ENABLED",
            "TOKEN_USAGE_LOGGING_ENABLED",
            "METRICS_AGGREGATION_ENABLED",
            "COMPRESSION_ENABLED",
            "MCPGATEWAY_UI_ENABLED",
            "PASSWORD_CHANGE_ENFORCEMENT_ENABLED",
        ),
        "false",
    )
    python = str(context.home / "bin" / "python")
    command_line = [
        python,
        "-m",
        "mcpgateway.utils.create_jwt_token",
        "-u",
        _FORGE_USER,
        "-e",
        "10000",
        "-s",
        _FORGE_SECRET,
        "--admin",
    ]
    created = subprocess.run(
        command_line, env={**os.environ, **env}, cwd=context.folder, capture_output=True, text=True, check=True
    )
    headers = {"Authorization": f"Bearer {created.stdout.strip().splitlines()[-1]}"}

    def register() -> None:
        for one in context.servers:
            _post_json(
                context.port, "/gateways", {"name": one.name, "url": one.url, "transport": "STREAMABLEHTTP"}, headers
            )

    command = [str(context.home / "bin" / "mcpgateway"), "--host", "127.0.0.1", "--port", str(context.port)]
    endpoint = Endpoint(context.port, "/mcp/", headers)
    command += ["--workers", "1", "--no-access-log", "--log-level", "error"]
    return Launch(command, endpoint, lambda server, tool: f"{server}-{tool}", env, register)


def _post_json(port: int, path: str, message: object, headers: Mapping[str, str], seconds: float = 60) -> None:
    """Post until the request succeeds: a peer that listens is not always ready."""
    body = json.dumps(message).encode()
    end = time.monotonic() + seconds
    while True:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json", **headers}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

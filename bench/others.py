"""How the other gateways are started: one process, in the fastest of the modes that their documentation names, logs of
single requests off."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.launch import Launch, Place, Server, own_name, servers_file, write
from bench.wire import Door

_FASTMCP = """
import asyncio, json, sys, uvicorn, uvloop
from fastmcp import Client
from fastmcp.server import create_proxy

async def serve(target, port):
    # Without a mode it speaks to a server in the era of the client: the fast way, where the server knows both.
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


def fastmcp_as(how: str) -> Callable[[Place], Launch]:
    def launch(place: Place) -> Launch:
        script = write(place.folder / "serve.py", _FASTMCP)
        command = [
            str(place.home / "bin" / "python"),
            script,
            servers_file(place),
            str(place.port),
            how,
            place.servers[0].era,
        ]
        env = {"FASTMCP_LOG_LEVEL": "ERROR", "FASTMCP_CHECK_FOR_UPDATES": "off"}
        naming = own_name if len(place.servers) == 1 else (lambda server, tool: f"{server}_{tool}")
        return Launch(command, Door(place.port), naming, env)

    return launch


def mcp_proxy_py(place: Place) -> Launch:
    base = [
        str(place.home / "bin" / "mcp-proxy"),
        "--port",
        str(place.port),
        "--log-level",
        "ERROR",
        "--pass-environment",
    ]
    return Launch([*base, "--", *place.servers[0].command], Door(place.port, "/mcp"), own_name)


def mcp_proxy_npm(place: Place) -> Launch:
    base = [str(place.home / "node_modules" / ".bin" / "mcp-proxy"), "--host", "127.0.0.1", "--port", str(place.port)]
    return Launch(
        [*base, "--server", "stream", "--no-eventStore", "--", *place.servers[0].command], Door(place.port), own_name
    )


def supergateway(place: Place) -> Launch:
    base = [str(place.home / "node_modules" / ".bin" / "supergateway"), "--stdio", shlex.join(place.servers[0].command)]
    options = ["--outputTransport", "streamableHttp", "--stateful", "--port", str(place.port), "--logLevel", "none"]
    return Launch([*base, *options], Door(place.port), own_name)


def mcpo(place: Place) -> Launch:
    file = servers_file(place, "streamable-http")
    command = [str(place.home / "bin" / "mcpo"), "--host", "127.0.0.1", "--port", str(place.port), "--config", file]
    door = Door(place.port, f"/{place.servers[0].name}")
    return Launch([*command, "--log-level", "ERROR"], door, own_name)


def litellm(place: Place) -> Launch:
    def entry(one: Server) -> dict[str, object]:
        if one.url:
            return {"url": one.url, "transport": "http"}
        return {"transport": "stdio", "command": one.command[0], "args": list(one.command[1:])}

    settings = {
        "general_settings": {"master_key": "sk-bench", "mcp_advertised_versions": ["2025-11-25", "2026-07-28"]},
        "litellm_settings": {"telemetry": False},
        "mcp_servers": {one.name: entry(one) for one in place.servers},
        "model_list": [],
    }
    file = write(place.folder / "litellm.yaml", json.dumps(settings))  # JSON is YAML
    options = ["--config", file, "--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "DISABLE_ADMIN_UI": "True", "NO_DOCS": "True"}
    programs = {name for one in place.servers for name in one.command[:1]}
    env["LITELLM_ENABLE_MCP_STDIO"] = "true"
    env["LITELLM_MCP_STDIO_EXTRA_COMMANDS"] = ",".join(sorted(programs | {Path(name).name for name in programs}))
    door = Door(place.port, "/mcp/", {"Authorization": "Bearer sk-bench", "x-litellm-api-key": "Bearer sk-bench"})
    command = [str(place.home / "bin" / "litellm"), *options]
    return Launch(command, door, lambda server, tool: f"{server}-{tool}", env)


_FORGE_SECRET = "a-secret-of-the-benchmark-that-opens-nothing"
_FORGE_USER = "admin@example.com"


def contextforge(place: Place) -> Launch:
    env = {
        "DATABASE_URL": f"sqlite:///{place.folder}/forge.db",
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
    python = str(place.home / "bin" / "python")
    make = [
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
    made = subprocess.run(make, env={**os.environ, **env}, cwd=place.folder, capture_output=True, text=True, check=True)
    headers = {"Authorization": f"Bearer {made.stdout.strip().splitlines()[-1]}"}

    def register() -> None:
        for one in place.servers:
            _post_json(
                place.port, "/gateways", {"name": one.name, "url": one.url, "transport": "STREAMABLEHTTP"}, headers
            )

    command = [str(place.home / "bin" / "mcpgateway"), "--host", "127.0.0.1", "--port", str(place.port)]
    door = Door(place.port, "/mcp/", headers)
    command += ["--workers", "1", "--no-access-log", "--log-level", "error"]
    return Launch(command, door, lambda server, tool: f"{server}-{tool}", env, register)


def _post_json(port: int, path: str, message: object, headers: Mapping[str, str], seconds: float = 60) -> None:
    """Until it is taken: what listens is not always ready."""
    body = json.dumps(message).encode()
    end = time.monotonic() + seconds
    while True:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json", **headers}, method="POST"
        )
        try:
            with urllib.request.urlopen(asked, timeout=30):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

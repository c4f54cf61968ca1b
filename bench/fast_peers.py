"""Start commands of the fast peers: the lower bounds, Toolway, and Envoy."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from bench.install import ROOT
from bench.launch import Launch, LaunchContext, Server, prefixed_name, servers_file, tool_name, write
from bench.wire import Endpoint


def direct(context: LaunchContext) -> Launch:
    port = int(context.servers[0].url.rpartition(":")[2].partition("/")[0])
    return Launch([], Endpoint(port), tool_name)


def bare(context: LaunchContext) -> Launch:
    targets = [f"{one.name}={one.url or shlex.join(one.command)}" for one in context.servers]
    command = [sys.executable, str(ROOT / "bench" / "bare.py"), str(context.port), *targets]
    return Launch(command, Endpoint(context.port), prefixed_name)


def toolway(context: LaunchContext, *key_options: str) -> Launch:
    file = servers_file(context)
    env = {"TOOLWAY_STATE": str(context.folder / "state"), "XDG_CACHE_HOME": str(context.folder / "cache")}
    toolway = str(Path(sys.executable).parent / "toolway")
    created = subprocess.run(
        [toolway, "keys", "create", "bench", "--rate", "none", *key_options, "--no-gateway", "--json", "-c", file],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    endpoint = Endpoint(context.port, headers={"Authorization": f"Bearer {json.loads(created.stdout)['token']}"})
    return Launch([toolway, "serve", "-q", "-c", file, "-p", str(context.port)], endpoint, prefixed_name, env)


def nginx(context: LaunchContext) -> Launch:
    address = context.servers[0].url.removeprefix("http://").partition("/")[0]
    folder = context.folder
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
  upstream lean {{ server {address}; keepalive 128; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{context.port} backlog=1024;
    location / {{
      proxy_pass http://lean; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffers 16 32k; proxy_buffer_size 32k; proxy_busy_buffers_size 64k;
    }}
  }}
}}
"""
    found = context.home / "usr" / "sbin" / "nginx"
    binary = str(found) if found.exists() else shutil.which("nginx") or "nginx"
    return Launch(
        [binary, "-p", str(folder), "-c", write(folder / "nginx.conf", conf)], Endpoint(context.port), tool_name
    )


def envoy(context: LaunchContext) -> Launch:
    def cluster(one: Server) -> dict[str, object]:
        port = int(one.url.rpartition(":")[2].partition("/")[0])
        endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
        load = {"cluster_name": one.name, "endpoints": [{"lb_endpoints": [endpoint]}]}
        return {"name": one.name, "type": "STATIC", "connect_timeout": "2s", "load_assignment": load}

    kinds = "type.googleapis.com/envoy.extensions.filters"
    servers = [
        {"name": one.name, "mcp_cluster": {"cluster": one.name, "path": "/mcp", "timeout": "30s"}}
        for one in context.servers
    ]
    route = {"match": {"prefix": "/"}, "route": {"cluster": context.servers[0].name}}
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
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": context.port}},
        "filter_chains": [{"filters": [network]}],
    }
    conf = {"static_resources": {"listeners": [listener], "clusters": [cluster(one) for one in context.servers]}}
    file = write(context.folder / "envoy.json", json.dumps(conf))
    command = [
        str(context.home / "bin" / "envoy"),
        "-c",
        file,
        "--concurrency",
        "1",
        "-l",
        "error",
        "--disable-hot-restart",
    ]
    return Launch(command, Endpoint(context.port), tool_name if len(context.servers) == 1 else prefixed_name)

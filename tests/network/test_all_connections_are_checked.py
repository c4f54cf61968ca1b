"""Whoever opens a connection does it through `toolway.network`: seen in the source, so that nobody forgets it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "toolway"
#: These connect, each to what `resolve_host` gave it, or never to what somebody else named.
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
HTTPX = frozenset({"AsyncClient", "get", "post", "put", "request", "stream", "send"})
FILES = sorted(file for file in SOURCE.rglob("*.py") if "testing" not in file.relative_to(SOURCE).parts)
#: Only files that contain one of these are parsed: parsing all takes seconds.
NAMES = re.compile(rf"\b(?:{'|'.join(sorted(OPENERS))}|httpx2?|HttpClient)\b")


def openings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that open connections in a way of their own."""
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


def test_no_module_opens_a_connection_in_a_way_of_its_own() -> None:
    found = {}
    for file in FILES:
        where = str(file.relative_to(SOURCE))
        text = file.read_text()
        calls = openings(ast.parse(text)) if NAMES.search(text) else ()
        found[where] = [each for each in calls if each[1] not in CONNECT.get(where, ())]
    assert {where: calls for where, calls in found.items() if calls} == {}


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
def test_it_would_be_seen(source: str) -> None:
    assert list(openings(ast.parse(source)))

"""Generated requests: who sends them, to which path, with which headers and framing."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any, Final, NamedTuple

from tests.gateway.edge_lab import HELLO, TOKEN, handshake, modern
from tests.warm.settings import NODE_TOKEN, REFUSED, Settings

Json = dict[str, Any]
Header = tuple[str, str]

PORT: Final = 8765
MCP_PATHS: Final = (
    *("/mcp", "/mcp", "/mcp", "/mcp/both", "/mcp/few", "/mcp/search", "/mcp/server/a", "/mcp/server/b"),
    *("/mcp/unknown", "/mcp/server/none", "/messages"),
)
API_TOOLS: Final = ("/api/tools/a__echo", "/api/both/tools/b__echo", "/api/server/a/tools/echo", "/api/tools/none")
OTHER_PATHS: Final = (
    *("/admin/servers", "/admin/tools", "/admin/keys", "/admin/calls", "/admin/config", "/who", "/metrics"),
    *("/api/openapi.json", "/api/both/openapi.json", "/api/server/a/openapi.json"),
    *("/login/a", "/healthz", "/readyz", "/node", "/node/link", "/node/proof?x=1", "/dashboard", "/admin", "/nowhere"),
)
POSTS: Final = ("/admin/dashboard-links", "/admin/servers/none/restart", "/node", "/login/a", "/dashboard/session")
#: Those whose body is equal for equal rights. Others show times and counters.
COMPARED: Final = ("/mcp", "/api/openapi.json", "/api/both", "/who", "/admin/keys", "/nowhere", "/messages", "/node")
TOOLS: Final = ("a__echo", "b__echo", "b__fail", "a__add", "b__add", "none__echo")
EXTRA: Final[tuple[Header, ...]] = (
    *(("X-A", "1"), ("X-B", "abc"), ("User-Agent", "probe"), ("Cookie", "a=b"), ("X-Api-Key", TOKEN)),
    *(("Authorisation", f"Bearer {TOKEN}"), ("Proxy-Authorization", f"Bearer {TOKEN}"), ("X-Forwarded-For", "9.9.9.9")),
    *(("Via", "1.1 proxy"), ("Forwarded", "for=9.9.9.9"), ("Origin", f"http://127.0.0.1:{PORT}")),
    *(
        ("Origin", "http://evil.example"),
        ("Mcp-Session-Id", "made-up"),
        ("X-Request-ID", "abc"),
        ("Mcp-Name", "b__echo"),
    ),
    *(("Idempotency-Key", "k1"), ("Content-Language", "en"), ("Expect", "100-continue"), ("Last-Event-ID", "1")),
)


class Request(NamedTuple):
    """One request as bytes, and what a check must know about it."""

    data: bytes
    label: str  # for messages
    compares_body: bool
    ends_connection: bool  # it says nothing about its body, so what follows the head is read as another request

    @property
    def first(self) -> bytes:
        """The bytes that are read as one request."""
        return self.data[: self.data.index(b"\r\n\r\n") + 4] if self.ends_connection else self.data


class Generator:
    """Random requests. `sessions` are ids of legacy sessions that were opened before, by role of the caller."""

    def __init__(self, rnd: random.Random, settings: Settings, sessions: dict[str, str]) -> None:
        self._rnd = rnd
        self._settings = settings
        self._sessions = sessions
        self._last: tuple[str, str, list[Header], bytes] | None = None  # the last one, before its small changes
        self._sent: deque[Request] = deque(maxlen=12)

    def next(self) -> Request:
        """Return a new request, the last one with small changes, or the bytes of an earlier one."""
        if self._sent and self._rnd.random() < 0.25:
            return self.again()
        found = self._new()
        self._sent.append(found)
        return found

    def again(self) -> Request:
        """Return an earlier request, byte by byte."""
        known = [each for each in self._sent if b"uthorization" in each.data]
        found = self._rnd.choice(known if known and self._rnd.random() < 0.7 else self._sent)
        return found._replace(label=f"again {found.label.removeprefix('again ')}")

    def recent_roles(self) -> list[str]:
        """Return the roles whose tokens the last requests have."""
        tokens = self._settings.tokens.items()
        return [role for role, token in tokens if any(token.encode() in request.data for request in self._sent)]

    def _new(self) -> Request:
        rnd = self._rnd
        if self._last is not None and rnd.random() < 0.5:
            method, path, before, body = self._last
            headers, who = list(before), "the last one"
        else:
            token, who = self._credential()
            method, path, headers, body = self._plain(who)
            if token is not None:
                scheme = rnd.choice(("Bearer",) * 8 + ("bearer", "BEARER", "Basic", "Bearer "))
                headers.insert(rnd.randrange(len(headers) + 1), ("Authorization", f"{scheme} {token}"))
        self._last = (method, path, list(headers), body)
        changes = [self._change_headers(headers) for _ in range(rnd.choice((0, 0, 1, 1, 2)))]
        return self._frame(method, path, headers, body, f"{method} {path} as {who}, {', '.join(changes) or 'plain'}")

    def _credential(self) -> tuple[str | None, str]:
        """Return a token, or None for no Authorization header, and its name."""
        rnd, settings = self._rnd, self._settings
        kind = rnd.choice(("none", "none", "good", "good", "good", "good", "local", "local", "bad", "retired", "node"))
        if kind == "good":
            role = rnd.choice(sorted(settings.tokens))
            return settings.tokens[role], role
        if kind == "retired" and settings.retired:
            return rnd.choice(settings.retired), "a retired token"
        if kind == "bad":
            return rnd.choice(REFUSED), "a bad token"
        if kind == "node":
            return NODE_TOKEN, "a node"
        return (TOKEN, "local") if kind == "local" else (None, "no one")

    def _plain(self, who: str) -> tuple[str, str, list[Header], bytes]:
        rnd = self._rnd
        host = rnd.choice((f"127.0.0.1:{PORT}",) * 20 + (f"localhost:{PORT}", "gateway.example", "evil.example"))
        headers: list[Header] = [("Host", host)]
        kind = rnd.random()
        if kind < 0.25:
            return rnd.choice(("GET", "GET", "GET", "OPTIONS", "DELETE")), rnd.choice(OTHER_PATHS), headers, b""
        if kind < 0.3:
            content = rnd.choice(("application/json",) * 5 + ("text/plain",))
            return "POST", rnd.choice(API_TOOLS), [*headers, ("Content-Type", content)], b'{"text":"x"}'
        if kind < 0.38:
            return "POST", rnd.choice(POSTS), [*headers, ("Content-Type", "application/json")], rnd.choice((b"", b"{}"))
        headers += [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")]
        body, own = self._modern() if rnd.random() < 0.5 else self._legacy(who)
        return "POST", rnd.choice(MCP_PATHS), [*headers, *own.items()], json.dumps(body).encode()

    def _call(self) -> tuple[str, Json]:
        rnd = self._rnd
        name = rnd.choice(TOOLS)
        arguments: Json = {"a": 1, "b": 2} if name.endswith("add") else {"text": rnd.choice(("x", "no", "y" * 40))}
        if rnd.random() < 0.3:
            return "call_tool", {"name": name, "arguments": arguments}
        return name, arguments

    def _message(self) -> tuple[str, Json]:
        rnd = self._rnd
        method = rnd.choice(
            ("tools/list", "tools/list", "tools/call", "tools/call", "tools/call", "prompts/list", "search")
        )
        if method == "tools/call":
            name, arguments = self._call()
            return method, {"name": name, "arguments": arguments}
        if method == "search":
            return "tools/call", {"name": "search_tools", "arguments": {"query": "echo text"}}
        return method, {}

    def _modern(self) -> tuple[Json, dict[str, str]]:
        method, params = self._message() if self._rnd.random() < 0.9 else ("server/discover", {})
        body, headers = modern(method, params, id=self._rnd.choice((1, 22, 333, "a")))
        if self._rnd.random() < 0.05:
            headers["Mcp-Name"] = "b__echo"
        return body, headers

    def _legacy(self, who: str) -> tuple[Json, dict[str, str]]:
        rnd = self._rnd
        if rnd.random() < 0.2:
            return handshake("initialize", HELLO), {}
        method, params = self._message()
        owner = who.split("-")[0] if rnd.random() < 0.7 else ""  # users have several tokens
        session = self._sessions.get(owner) or self._sessions[rnd.choice(sorted(self._sessions))]
        headers = {"Mcp-Session-Id": session} if rnd.random() < 0.9 else {}
        if rnd.random() < 0.8:
            headers["Mcp-Protocol-Version"] = "2025-11-25"
        return handshake(method, params, id=rnd.choice((1, 22, 333))), headers

    def _change_headers(self, headers: list[Header]) -> str:
        """Change a list of headers a little, in place. Return what was done."""
        rnd = self._rnd
        change = rnd.choice(
            ("add", "add", "drop", "drop", "double", "other value", "shuffle", "recase", "spaces", "other token")
        )
        at = rnd.randrange(len(headers)) if headers else 0
        if change == "add" or not headers:
            headers.insert(at, rnd.choice(EXTRA))
            return f"with {headers[at][0]}"
        name, value = headers[at]
        if change == "drop":
            if rnd.random() < 0.8:  # the one that counts most
                at = next((n for n, (each, _) in enumerate(headers) if each.lower() == "authorization"), at)
            return f"without {headers.pop(at)[0]}"
        if change == "double":
            headers.insert(rnd.randrange(len(headers) + 1), (name, value))
        elif change == "other value":
            headers[at] = (name, rnd.choice(("", "x", value[:-1], value + "x", value.upper())))
        elif change == "shuffle":
            rnd.shuffle(headers)
        elif change == "recase":
            headers[:] = [(rnd.choice((str.upper, str.lower, str.title))(each), text) for each, text in headers]
        elif change == "spaces":
            headers[at] = (name, rnd.choice((" ", "\t", "")) + value + rnd.choice((" ", "  ", "\t")))
        else:
            token, who = self._credential()
            kept = [each for each in headers if each[0].lower() != "authorization"]
            headers[:] = kept if token is None else [*kept, ("Authorization", f"Bearer {token}")]
            return f"as {who}"
        return f"{change} {name}"

    def _frame(self, method: str, path: str, headers: list[Header], body: bytes, label: str) -> Request:
        """Encode a request, with one of several ways to say where its body ends."""
        rnd = self._rnd
        headers = [each for each in headers if each[0].lower() not in ("content-length", "transfer-encoding")]
        ends = False
        kind = rnd.random()
        sent = body
        if body and kind < 0.1:
            headers.append(("Transfer-Encoding", "chunked"))
            sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif body and kind < 0.25:
            sent, label = b"", f"{label}, no body and no length"
        elif body and kind < 0.28:
            ends, label = True, f"{label}, a body without a length"
        elif body or (method == "POST" and kind < 0.5):
            name = rnd.choice(("Content-Length",) * 6 + ("content-length", "CONTENT-LENGTH"))
            headers.insert(rnd.randrange(len(headers) + 1), (name, str(len(body))))
        if rnd.random() < 0.02:
            headers.append(("Connection", "close"))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
        compares = path.startswith(COMPARED) and method in ("GET", "POST")
        return Request("\r\n".join(lines).encode("latin-1") + sent, label, compares, ends)

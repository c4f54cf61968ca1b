"""Addresses that do not answer as an MCP server does."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.auth.oauth_lab import Guarded, Issuer
from tests.doctor.doctor_lab import Lab
from tests.doctor.http_servers import Answer, Request, mcp, page, serving, serving_old
from tests.doctor.rows import row
from tests.faults.matrix.http.tls_server import certificate
from tests.upstream.legacy_sse_server import serve_legacy_sse
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment


def address(port: int, path: str = "/mcp", scheme: str = "http") -> dict[str, Any]:
    return {"url": f"{scheme}://127.0.0.1:{port}{path}"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port: int = door.getsockname()[1]
        return port


def token(seconds: float) -> str:
    """A JSON Web Token that expires in that many seconds."""

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return (
        f"{part({'alg': 'none', 'typ': 'JWT'})}.{part({'sub': 'me', 'exp': int(time.time() + seconds)})}.c2lnbmF0dXJl"
    )


def guarded(accepts: Any) -> Callable[[Request], Answer]:
    """A server that wants a token."""

    def site(request: Request) -> Answer:
        if accepts(request.headers.get("authorization", "")):
            return mcp(request)
        challenge = {"WWW-Authenticate": 'Bearer error="invalid_token"', "Content-Type": "text/plain"}
        return Answer(401, b"unauthorized", challenge)

    return site


@row("nothing listens")
async def connection_refused(lab: Lab) -> None:
    port = free_port()
    lab.servers(acme=address(port))
    check = await lab.finds("acme: cannot connect to http://127.0.0.1:", "connection refused")
    assert "start the server" in check.hint
    async with serving(mcp, port=port):
        await lab.is_well()


@row("a host that does not exist")
async def no_host(lab: Lab) -> None:
    lab.servers(acme={"url": "http://acme.invalid/mcp"})
    check = await lab.finds("acme: host acme.invalid not found")
    assert "URL" in check.hint
    async with serving(mcp) as port:
        lab.edit("acme.invalid", f"127.0.0.1:{port}")
        await lab.is_well()


@row("a host that leads inside")
async def inside(lab: Lab) -> None:
    """A number that is spelt as no one spells it stands for a name here: both need a word."""
    async with serving(mcp) as port:
        lab.servers(acme={"url": f"http://127.1:{port}/mcp"})
        check = await lab.finds("acme: 127.1 resolves to 127.0.0.1, which is a loopback address")
        document = json.loads(lab.file.read_text())
        lab.write(json.dumps(document | json.loads("{" + check.copy + "}")))
        await lab.is_well()


@row("an address that cannot be allowed")
async def not_an_address(lab: Lab) -> None:
    async with serving(mcp) as port:
        block = {"addresses": {"allow": ["http://x"]}}
        lab.write(json.dumps({"mcpServers": {"acme": address(port)}, "toolway": block}))
        check = await lab.finds("invalid address rule 'http://x'")
        assert "without scheme" in check.hint
        lab.edit("http://x", "x")
        await lab.is_well()


@row("a proxy that is not there")
async def proxy(lab: Lab) -> None:
    """The proxy is a variable of ours, so the program itself is run. A loopback address would not use one."""
    lab.environ |= {"HTTP_PROXY": f"http://127.0.0.1:{free_port()}", "PYTHONPATH": ":".join(filter(None, sys.path))}
    program = f"{sys.executable} -m toolway.cli doctor acme"
    async with serving(mcp) as port:
        lab.servers(acme={"url": f"http://0.0.0.0:{port}/mcp"})
        said = await lab.run(f"{program} || true")
        assert said.startswith("✗ acme: cannot connect to proxy 127.0.0.1:"), said
        assert "export NO_PROXY=0.0.0.0" in said
        said = await lab.run(f"export NO_PROXY=0.0.0.0; {program}")
        assert said.startswith("✓ acme: no problem found\n"), said


@row("401")
async def unauthorized(lab: Lab) -> None:
    async with serving(guarded(lambda header: header == "Bearer tok-1234567890")) as port:
        lab.servers(acme=address(port))
        check = await lab.finds("acme: the server requires a token (401), and the entry has none")
        lab.take_over(check, "acme")
        lab.environ["TOKEN"] = "tok-1234567890"
        await lab.is_well()


@row("a login by OAuth")
async def login(lab: Lab) -> None:
    lab.environ["TOOLWAY_SECRETS"] = "file"
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        lab.servers(acme={"url": guarded.url})
        check = await lab.finds("acme: the server requires an OAuth login (401), and you have no valid login")
        assert check.copy == "toolway login acme"
        async with HubCore(
            {"acme": guarded.url}, environment=HubEnvironment(environ=lab.environ), catalog_storage=None
        ) as hub:
            await hub.servers.logins.login("acme", issuer.login)
        await lab.is_well()
        issuer.expire()
        issuer.refresh.clear()
        check = await lab.finds("acme: the server requires an OAuth login (401), and you have no valid login")
        assert "invalid_grant" in check.detail and check.copy == "toolway login acme"


@row("a token that is refused")
async def refused(lab: Lab) -> None:
    lab.environ["TOKEN"] = "tok-wrong-wrong"
    async with serving(guarded(lambda header: header == "Bearer tok-1234567890")) as port:
        lab.servers(acme={**address(port), "headers": {"Authorization": "Bearer ${TOKEN}"}})
        check = await lab.finds("acme: the server rejects the token in headers.Authorization (401)")
        assert 'error="invalid_token"' in check.detail
        assert "tok-wrong-wrong" not in str(check)
        assert check.copy == "export TOKEN=NEW_TOKEN"
        lab.environ["TOKEN"] = "tok-1234567890"
        await lab.is_well()


@row("token expired")
async def expired(lab: Lab) -> None:
    good = token(3600)
    lab.environ["TOKEN"] = token(-250)
    async with serving(guarded(lambda header: header == f"Bearer {good}")) as port:
        lab.servers(acme={**address(port), "headers": {"Authorization": "Bearer ${TOKEN}"}})
        check = await lab.finds("acme: the token in headers.Authorization expired 4 minutes ago")
        assert "it is read from ${TOKEN}" in check.detail
        assert "get a new token" in check.hint
        assert check.copy == "export TOKEN=NEW_TOKEN"
        lab.environ["TOKEN"] = good
        await lab.is_well()


@row("a clock that is wrong")
async def clock(lab: Lab) -> None:
    """Two clocks that differ make a good token look bad. Ours cannot be set here, so the server's is."""
    right = False

    def site(request: Request) -> Answer:
        answer = guarded(lambda header: right and header == "Bearer tok-1234567890")(request)
        if not right:
            answer.headers["Date"] = "Sat, 01 Jan 2000 00:00:00 GMT"
        return answer

    lab.environ["TOKEN"] = "tok-1234567890"
    async with serving(site) as port:
        lab.servers(acme={**address(port), "headers": {"Authorization": "Bearer ${TOKEN}"}})
        check = await lab.finds("acme: the server rejects the token", "(401), and this machine's clock is", "ahead")
        assert "clock" in check.hint
        right = True
        await lab.is_well()


@row("redirect")
async def redirect(lab: Lab) -> None:
    async with serving(mcp) as new:
        moved = {"Location": f"http://127.0.0.1:{new}/v2/mcp"}
        async with serving(lambda request: Answer(301, b"", moved)) as old:
            lab.servers(acme=address(old))
            check = await lab.finds(f"acme: the server has moved: it redirects to http://127.0.0.1:{new}/v2/mcp")
            lab.take_over(check, "acme")
            await lab.is_well()


@row("HTML instead of JSON")
async def html(lab: Lab) -> None:
    def site(request: Request) -> Answer:
        return mcp(request) if request.path == "/mcp" else page("Welcome to Acme")

    async with serving(site) as port:
        lab.servers(acme=address(port, "/"))
        check = await lab.finds("acme: a web page (Welcome to Acme) is at this url, not an MCP server")
        lab.take_over(check, "acme")
        await lab.is_well()


@row("a web page, and no endpoint next to it")
async def only_html(lab: Lab) -> None:
    async with serving(lambda request: page("Acme login")) as port:
        lab.servers(acme=address(port, "/"))
        check = await lab.finds("acme: a web page (Acme login) is at this url, not an MCP server")
        assert "documentation" in check.hint
    async with serving(mcp) as port:
        lab.servers(acme=address(port))
        await lab.is_well()


@row("the wrong path")
async def wrong_path(lab: Lab) -> None:
    def site(request: Request) -> Answer:
        return mcp(request) if request.path == "/mcp" else Answer(404, b"not found", {"Content-Type": "text/plain"})

    async with serving(site) as port:
        lab.servers(acme=address(port, "/mpc"))
        check = await lab.finds("acme: no MCP endpoint at this url (404)")
        lab.take_over(check, "acme")
        await lab.is_well()


@row("SSE-only")
async def sse_only(lab: Lab) -> None:
    """It works; there is nothing to mend but that the entry may say so."""
    async with serving_old() as port:
        lab.servers(acme=address(port, "/sse"))
        check = await lab.finds("acme: the server uses the deprecated HTTP+SSE transport instead of Streamable HTTP")
        assert check.state == "warn"
        lab.take_over(check, "acme")
        await lab.is_well()


@row("SSE at this address, Streamable HTTP next to it")
async def sse_and_more(lab: Lab) -> None:
    async with serving_old(at_mcp=mcp) as port:
        for entry in (address(port, "/sse"), {**address(port, "/sse"), "type": "sse"}):
            lab.servers(acme=entry)
            check = await lab.finds("acme: the server uses the deprecated HTTP+SSE transport")
            lab.take_over(check, "acme")
            await lab.is_well()


@row("an entry of type sse")
async def type_sse(lab: Lab) -> None:
    async with serving(mcp) as port:
        lab.servers(acme={**address(port), "type": "sse"})
        check = await lab.finds(
            "acme: the server uses Streamable HTTP, but its entry is configured for the older HTTP+SSE"
        )
        lab.take_over(check, "acme")
        await lab.is_well()


@row("an SSE server that wants messages elsewhere")
async def sse_elsewhere(lab: Lab) -> None:
    async with serve_legacy_sse(endpoint="http://127.0.0.1:9/messages") as server:
        lab.servers(acme={"url": server.url})
        check = await lab.finds("acme: the server names a URL for messages at another origin, http://127.0.0.1:9")
        assert "public URL" in check.hint
        lab.edit('"url"', '"enabled": false, "url"')
        await lab.is_well()


@row("plain HTTP where TLS is expected")
async def no_tls(lab: Lab) -> None:
    async with serving(mcp) as port:
        lab.servers(acme=address(port, scheme="https"))
        check = await lab.finds("acme: no TLS connection to https://127.0.0.1")
        lab.take_over(check, "acme")
        await lab.is_well()


@row("TLS where plain HTTP is written")
async def no_https(lab: Lab) -> None:
    """The certificate of the server is of an authority that is not known here, which is the next thing to mend."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(lab.work / "authority.pem"))
    async with serving(mcp, context) as port:
        lab.servers(acme=address(port))
        check = await lab.finds("acme: the address speaks TLS, but url does not start with https")
        lab.take_over(check, "acme")
        lab.edit('"url"', f'"tls": {{"caFile": "{lab.work}/authority.pem"}}, "url"')
        await lab.is_well()


@row("a slash too much or too little")
async def slash(lab: Lab) -> None:
    """A redirect within the server is followed, so there is nothing to mend."""

    def site(request: Request) -> Answer:
        return mcp(request) if request.path == "/mcp/" else Answer(307, b"", {"Location": "/mcp/"})

    async with serving(site) as port:
        lab.servers(acme=address(port))
        await lab.is_well()


@row("a token without its scheme")
async def no_scheme(lab: Lab) -> None:
    lab.environ["TOKEN"] = "tok-1234567890"
    async with serving(guarded(lambda header: header == "Bearer tok-1234567890")) as port:
        lab.servers(acme={**address(port), "headers": {"Authorization": "${TOKEN}"}})
        check = await lab.finds("acme: the server rejects the token in headers.Authorization (401): it has no scheme")
        lab.take_over(check, "acme")
        await lab.is_well()


@row("an OpenAPI document as a server")
async def api_document(lab: Lab) -> None:
    document = {"openapi": "3.1.0", "info": {"title": "Acme", "version": "1"}, "paths": {}}
    answer = Answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})
    async with serving(lambda request: answer) as port:
        lab.servers(acme=address(port, "/openapi.json"))
        check = await lab.finds("acme: this url has an OpenAPI document, not an MCP server")
        assert check.copy == f'"openapi": {{"url": "http://127.0.0.1:{port}/openapi.json"}}'


@row("a proxy before a server that does not run")
async def bad_gateway(lab: Lab) -> None:
    async with serving(lambda request: Answer(502, b"Bad Gateway", {"Content-Type": "text/plain"})) as port:
        lab.servers(acme=address(port))
        check = await lab.finds("acme: the server failed (502)")
        assert "the server behind it does not" in check.hint


@row("TLS failure")
async def tls(lab: Lab) -> None:
    """The certificate of an authority that is not known here."""
    pem = certificate(lab.work / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with serving(mcp, context) as port:
        lab.servers(acme=address(port, scheme="https"))
        check = await lab.finds("acme: the certificate of https://127.0.0.1", "was rejected (self-signed certificate)")
        assert check.copy == '"tls": {"caFile": "/path/to/authority.pem"}'
        lab.edit('"url"', f'{check.copy.replace("/path/to", str(lab.work))}, "url"')
        await lab.is_well()


@row("a certificate that is self-signed, expired and for another host")
async def worst_certificate(lab: Lab) -> None:
    """OpenSSL names the first problem only. Fix all of them before using the server."""
    pem = certificate(lab.work / "authority.pem", host="tools.example", days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    port = free_port()
    async with serving(mcp, context, port):
        lab.servers(acme=address(port, scheme="https"))
        check = await lab.finds(
            "was rejected (self-signed certificate), and it is for tools.example, not for 127.0.0.1, and it expired on"
        )
        assert "use that name in url; then: the certificate has expired" in check.hint
        assert check.hint.endswith("and set its path")
    renewed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    renewed.load_cert_chain(certificate(pem))
    async with serving(mcp, renewed, port):
        lab.edit('"url"', f'{check.copy.replace("/path/to", str(lab.work))}, "url"')
        await lab.is_well()


@row("a certificate that has expired")
async def old_certificate(lab: Lab) -> None:
    """It is trusted, so its end is all that is wrong with it; that needs a variable, so the program is run."""
    pem = certificate(lab.work / "own.pem", days=-1)
    lab.environ |= {"SSL_CERT_FILE": str(pem), "PYTHONPATH": ":".join(filter(None, sys.path))}
    program = f"{sys.executable} -m toolway.cli doctor acme"
    port = free_port()
    lab.servers(acme=address(port, scheme="https"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with serving(mcp, context, port):
        said = await lab.run(f"{program} || true")
        assert "(certificate has expired)" in " ".join(said.partition("\n\n")[0].split()), said
        assert "to renew it" in " ".join(said.split()), said
    renewed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    renewed.load_cert_chain(certificate(pem))
    async with serving(mcp, renewed, port):
        said = await lab.run(program)
        assert said.startswith("✓ acme: no problem found\n"), said

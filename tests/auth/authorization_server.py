"""A real authorization server, the SDK's on uvicorn, and a server that takes its tokens, in their own process.

    async with real_issuer() as lab:
        hub = Hub({"guarded": lab.url}, login=lab.login)
        await lab.command("expire")
        (await lab.command()).refreshes

Its refresh tokens work once, and the second use of one ends the whole family of tokens that came from the same login,
as OAuth 2.1 asks for. `slow SECONDS` lets it rotate a token at once and answer late: the worst moment to be killed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx2
import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette

from tests.auth.oauth_lab import Guarded


@dataclass
class Facts:
    """What was seen so far."""

    url: str = ""  # of the guarded server
    issuer: str = ""
    registrations: int = 0
    logins: int = 0
    refreshes: int = 0  # refresh tokens that were taken
    reused: int = 0  # refresh tokens that came a second time
    refused: int = 0
    revoked: int = 0
    seen: list[str] = field(default_factory=list)  # the Authorization headers of calls


class Provider:
    """The SDK's protocol, in memory."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.valid: dict[str, str] = {}  # access tokens and their scopes, as `Guarded` wants to know
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.family: dict[str, str] = {}  # of every token ever given
        self.lifetime = 3600
        self.slow = 0.0

    @property
    def issuer(self) -> str:
        return self.facts.issuer

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.facts.registrations += 1
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """A user who agrees to everything."""
        assert client.client_id is not None
        code = secrets.token_urlsafe(24)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: AuthorizationCode) -> OAuthToken:
        del self.codes[authorization_code.code]
        self.facts.logins += 1
        return self._tokens(
            client.client_id, authorization_code.scopes, authorization_code.resource, secrets.token_hex(4)
        )

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        found = self.refresh.get(refresh_token)
        if found is None:
            self.facts.refused += 1
            if refresh_token in self.family:  # it worked once: someone has stolen it, or us
                self.facts.reused += 1
                self._end(self.family[refresh_token])
        return found

    async def exchange_refresh_token(self, client: Any, refresh_token: RefreshToken, scopes: list[str]) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.facts.refreshes += 1
        new = self._tokens(client.client_id, scopes, refresh_token.resource, self.family[refresh_token.token])
        await asyncio.sleep(self.slow)
        return new

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.facts.revoked += 1
        self._end(self.family[token.token])

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError

    def _tokens(self, client: str, scopes: list[str], resource: str | None, family: str) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        self.family[access] = self.family[refresh] = family
        self.access[access] = AccessToken(token=access, client_id=client, scopes=scopes, resource=resource)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes, resource=resource)
        if resource == self.facts.url:  # the server takes what was given for it, and nothing else
            self.valid[access] = " ".join(scopes)
        return OAuthToken(
            access_token=access, refresh_token=refresh, expires_in=self.lifetime, scope=" ".join(scopes) or None
        )

    def _end(self, family: str) -> None:
        for kept in (self.access, self.refresh, self.valid):
            for token in [token for token in kept if self.family[token] == family]:
                del kept[token]

    def handle_command(self, words: list[str]) -> None:
        match words:
            case ["expire"]:  # no access token is good any more, whatever was said of its life
                self.valid.clear()
            case ["end"]:  # nor any refresh token
                self.valid.clear()
                self.refresh.clear()
            case ["lifetime", seconds]:
                self.lifetime = int(seconds)
            case ["slow", seconds]:
                self.slow = float(seconds)


class RealIssuer:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.url = ""

    async def command(self, *words: str) -> Facts:
        """`expire`, `end`, `lifetime SECONDS`, `slow SECONDS`, or nothing; and what was seen by then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{' '.join(words)}\n".encode())
        return Facts(**json.loads(await self._process.stdout.readline()))

    async def until(self, wanted: Any, seconds: float = 30) -> Facts:
        async with asyncio.timeout(seconds):
            while not wanted(facts := await self.command()):
                await asyncio.sleep(0.02)
        return facts

    @staticmethod
    async def login(server: str, url: str) -> str:
        """A browser whose user agrees to everything."""
        async with httpx2.AsyncClient(verify=False) as client:
            return str((await client.get(url, follow_redirects=False)).headers["location"])


@asynccontextmanager
async def real_issuer() -> AsyncIterator[RealIssuer]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.auth.authorization_server", stdin=pipe, stdout=pipe, limit=2**24
    )
    try:
        lab = RealIssuer(process)
        lab.url = (await lab.command()).url
        yield lab
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends with its input
        async with asyncio.timeout(10):
            await process.wait()


async def _serve() -> None:
    facts = Facts()
    provider = Provider(facts)
    listener = socket.create_server(("127.0.0.1", 0))
    facts.issuer = f"http://127.0.0.1:{listener.getsockname()[1]}/"  # as the SDK writes it
    routes = create_auth_routes(
        provider,
        AnyHttpUrl(facts.issuer),
        client_registration_options=ClientRegistrationOptions(enabled=True),
        revocation_options=RevocationOptions(enabled=True),
    )
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    async with Guarded(provider) as guarded:  # type: ignore[arg-type] # all that it asks an issuer
        facts.url = guarded.url
        while words := (await asyncio.to_thread(sys.stdin.readline)):
            provider.handle_command(words.split())
            facts.seen = guarded.sent
            print(json.dumps(asdict(facts)), flush=True)
    server.should_exit = server.force_exit = True
    await running


if __name__ == "__main__":
    asyncio.run(_serve())

"""Notes server that requires an OAuth login: the SDK's server with the SDK's authorization server.

    python examples/login/notes_server.py 8901

It grants every login without a password. Access tokens expire after a minute, and each refresh token works once, as
with real issuers.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from typing import Any

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

TOKEN_LIFETIME_S = 60


class Accounts:
    """In-memory OAuth provider: clients, codes and tokens."""

    def __init__(self) -> None:
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._access: dict[str, AccessToken] = {}
        self._refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self._clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """Grant the login at once. A real issuer shows a login page here."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = AuthorizationCode(
            code=code,
            client_id=str(client.client_id),
            expires_at=time.time() + TOKEN_LIFETIME_S,
            **params.model_dump(exclude={"state", "scopes"}),
            scopes=params.scopes or [],
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: AuthorizationCode) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._tokens(client.client_id, authorization_code.resource)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        return self._refresh.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: RefreshToken, scopes: list[str]) -> OAuthToken:
        del self._refresh[refresh_token.token]
        return self._tokens(client.client_id, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self._access.get(token)
        return found if found is not None and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        """Delete all tokens of the client that the token was issued to."""
        self._access = {key: each for key, each in self._access.items() if each.client_id != token.client_id}
        self._refresh = {key: each for key, each in self._refresh.items() if each.client_id != token.client_id}

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError

    def _tokens(self, client: str, resource: str | None) -> OAuthToken:
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        facts: dict[str, Any] = {"client_id": client, "scopes": [], "resource": resource}
        self._access[access] = AccessToken(token=access, expires_at=int(time.time()) + TOKEN_LIFETIME_S, **facts)
        self._refresh[refresh] = RefreshToken(token=refresh, **facts)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=TOKEN_LIFETIME_S)


def main(port: int) -> None:
    here = f"http://127.0.0.1:{port}"
    server = MCPServer(
        "notes",
        auth_server_provider=Accounts(),
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(here),
            resource_server_url=AnyHttpUrl(f"{here}/mcp"),
            client_registration_options=ClientRegistrationOptions(enabled=True),
            revocation_options=RevocationOptions(enabled=True),
            validate_token_resource=True,
        ),
    )

    @server.tool()
    def read(name: str) -> str:
        """Read a note."""
        return f"{name}: buy milk"

    logging.disable()
    server.run("streamable-http", port=port)


if __name__ == "__main__":
    main(int(sys.argv[1]))

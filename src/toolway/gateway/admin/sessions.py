"""`/who` and `/admin/sessions`: the sender of a request, and the people who logged in with the identity provider."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolway.errors import ConfigError, NotFound
from toolway.events import AccessEvent
from toolway.gateway.principals import ACCESS_PREFIX, PERSON_PREFIX, ApiKeyStore, Principal
from toolway.hub.core import HubCore
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.gateway.identity.provider import IdentityProvider


def describe_principal(principal: Principal, expires_at: float | None, login: IdentityProvider | None) -> Json:
    """Return, for `/who`, what the gateway knows about the sender of the request: id, name, rights and login."""
    kind = "person" if principal.is_person else "key" if principal.caller_id else "owner"
    scopes = principal.scopes
    facts: Json = {
        "id": principal.id,
        "name": principal.name,
        "kind": kind,
        "admin": principal.admin,
        "scopes": None if scopes is None else [scope.removeprefix(ACCESS_PREFIX) for scope in scopes],
        "expires": expires_at,
    }
    # Of the token of this request: another token of the same person may have other groups.
    return {**facts, **_describe_login(principal, login)} if login is not None and principal.is_person else facts


def _describe_login(principal: Principal, login: IdentityProvider) -> Json:
    return {
        "issuer": login.settings.issuer,
        "subject": principal.subject,
        "client": principal.client,
        "groups": list(principal.groups),
    }


class SessionsAdmin:
    """Handlers of `/admin/sessions`: list people who logged in, and end their logins.

    A gateway lists the people whose tokens it verified itself. Ended logins are stored with the API keys, so that all
    workers and nodes refuse them.
    """

    def __init__(
        self, hub: HubCore, api_keys: ApiKeyStore | None, login: Callable[[], IdentityProvider | None]
    ) -> None:
        self._hub = hub
        self._api_keys = api_keys
        self._login = login

    def list(self) -> Json:
        """Return the people who logged in, and the state of the provider: null if no login is configured."""
        login = self._login()
        if login is None:
            return {"provider": None, "sessions": []}
        return {
            "provider": dict(login.describe()),
            "sessions": [
                {
                    "id": person.principal.id,
                    "name": person.principal.name,
                    "admin": person.principal.admin,
                    "seen": person.seen_at,
                    "expires": person.identity.expires_at,
                    **_describe_login(person.principal, login),
                }
                for person in login.people()
            ],
        }

    async def end(self, who: str) -> Json:
        """End the logins of a person: refuse all tokens that were issued to it until now, and abort its requests.

        `who` is the id or the subject of the person, or a name that only one person has. Raises `NotFound` if several
        people have this name.
        """
        login = self._require_login()
        assert self._api_keys is not None
        people = login.people()
        found = [each for each in people if who in (each.principal.id, each.identity.subject)]
        found = found or [each for each in people if who == each.principal.name]
        if len(found) > 1:
            raise NotFound(
                f"several people have the name {who!r}",
                detail=", ".join(each.identity.subject for each in found[:10]),
                hint="name the subject or the id: toolway users ls",
            )
        id_ = found[0].principal.id if found else who if who.startswith(PERSON_PREFIX) else login.principal_id(who)
        await self._api_keys.end_logins(id_, time.time())
        self._hub.emit(AccessEvent("", "logins_ended", who[:200], principal_id=id_))
        return {"ended": id_, "known": bool(found)}

    def _require_login(self) -> IdentityProvider:
        login = self._login()
        if login is None or self._api_keys is None:
            raise ConfigError(
                "no login is configured",
                detail="this gateway accepts API keys only",
                hint="see toolway.gateway.login in the configuration; API keys: toolway keys ls",
                code="E-LOGIN-NONE",
            )
        return login

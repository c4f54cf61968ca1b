"""`/admin/sessions`: lists the users who logged in, and logs them out.

A gateway lists the users whose tokens it verified itself. Logouts are stored next to the API keys, so all workers and
nodes reject the tokens.
"""

from __future__ import annotations

import time
from typing import Final

from toolway.errors import ConfigError, NotFound
from toolway.events import AccessEvent
from toolway.gateway.admin.routes import AdminRequest, Route
from toolway.gateway.admin.schema import BOOLEAN, INTEGER, NUMBER, STRING, STRINGS, array_of, object_of
from toolway.gateway.principals import USER_PREFIX
from toolway.parts.identity.runtime import IdentityRuntime
from toolway.types import Json

SCHEMAS: Final = {
    "SessionList": object_of(
        {
            "provider": {
                "anyOf": [
                    object_of(
                        {
                            **dict.fromkeys(("issuer", "audience", "problem"), STRING),
                            "keys": INTEGER,
                            "good_until": NUMBER,
                        }
                    ),
                    {"type": "null"},
                ]
            },
            "sessions": array_of(
                object_of(
                    {
                        **dict.fromkeys(("id", "name", "issuer", "subject", "client"), STRING),
                        "admin": BOOLEAN,
                        "groups": STRINGS,
                        "seen": NUMBER,
                        "expires": NUMBER,
                    }
                )
            ),
        }
    )
}


def list_sessions(runtime: IdentityRuntime, request: AdminRequest) -> Json:
    """Return the users who logged in, and the provider's state, which is null if no login is configured."""
    login = runtime.login
    if login is None:
        return {"provider": None, "sessions": []}
    return {
        "provider": dict(login.describe_state()),
        "sessions": [
            {
                "id": user.principal.id,
                "name": user.principal.name,
                "admin": user.principal.admin,
                "seen": user.seen_at,
                "expires": user.identity.expires_at,
                **login.describe(user.principal),
            }
            for user in login.users()
        ],
    }


async def end_session(runtime: IdentityRuntime, request: AdminRequest) -> Json:
    """Log a user out: reject all tokens issued so far, and abort running requests.

    The user is identified by id or subject, or by a name that only one user has. Raises `NotFound` if several users
    have this name.
    """
    who, login, api_keys = request.decoded("who"), runtime.login, runtime.context.api_keys
    if login is None or api_keys is None:
        raise ConfigError(
            "no login is configured",
            detail="this gateway accepts API keys only",
            hint="set toolway.gateway.login in the config file; for API keys: toolway keys ls",
            code="E-LOGIN-NONE",
        )
    users = login.users()
    found = [each for each in users if who in (each.principal.id, each.identity.subject)]
    found = found or [each for each in users if who == each.principal.name]
    if len(found) > 1:
        raise NotFound(
            f"several users are named {who!r}",
            detail=", ".join(each.identity.subject for each in found[:10]),
            hint="use the subject or the id instead; list them with: toolway users ls",
        )
    id_ = found[0].principal.id if found else who if who.startswith(USER_PREFIX) else login.principal_id(who)
    await api_keys.end_logins(id_, time.time())
    runtime.context.hub.emit(AccessEvent("", "logins_ended", who[:200], principal_id=id_))
    return {"ended": id_, "known": bool(found)}


ROUTES: Final = (
    Route("GET", "/admin/sessions", "Users who logged in", "SessionList", list_sessions),
    Route("DELETE", "/admin/sessions/{who}", "Log a user out: id, subject, or name", "Done", end_session),
)

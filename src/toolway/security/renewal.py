"""Renewing a token: what is asked, and whether the answer may replace what we have. Pure.

The SDK renews too, but it drops the token when that fails, takes whatever scope comes back, and after a restart asks
the server's own origin, whoever issued the token.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from toolway.model import NotAuthorized
from toolway.security.tokens import Client, Credential

_WORD = re.compile(r"[a-z_]{1,40}")


def renewal(credential: Credential) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers with which the issuer is asked."""
    assert credential.refresh is not None
    form = {"grant_type": "refresh_token", "refresh_token": credential.refresh}
    if credential.resource is not None:
        form["resource"] = credential.resource
    return _shown_by(credential.client, form)


def revocation(credential: Credential) -> tuple[dict[str, str], dict[str, str]]:
    """The same for taking the login back."""
    if credential.refresh is not None:
        return _shown_by(credential.client, {"token": credential.refresh, "token_type_hint": "refresh_token"})
    return _shown_by(credential.client, {"token": credential.access, "token_type_hint": "access_token"})


def _shown_by(client: Client, form: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The form with what shows that it is this client's, and the headers."""
    form = {**form, "client_id": client.id}
    headers = {"Accept": "application/json"}
    if client.secret is not None and client.method == "client_secret_basic":
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif client.secret is not None and client.method == "client_secret_post":
        form["client_secret"] = client.secret
    return form, headers


def renewed(credential: Credential, status: int, body: bytes, now: float) -> Credential:
    """What replaces `credential`. Raises `NotAuthorized` where the answer must not."""
    answer = answer_of(body)
    if status != 200:
        raise refused(status, answer, "renew the token")
    access, refresh, scope = answer.get("access_token"), answer.get("refresh_token"), answer.get("scope")
    if not isinstance(access, str) or not access or not _sendable(access):
        raise _unusable("has no usable token in it")
    if str(answer.get("token_type", "")).lower() != "bearer":
        raise _unusable("is of a kind of token that is not known")
    if answer.get("iss", answer.get("issuer", credential.issuer)) != credential.issuer:
        raise _unusable("comes from another issuer")
    if isinstance(scope, str) and credential.scope is not None and set(scope.split()) - set(credential.scope.split()):
        raise _unusable("allows more than was ever asked for")
    new = replace(
        credential,
        access=access,
        refresh=refresh if isinstance(refresh, str) and refresh else credential.refresh,
        scope=scope if isinstance(scope, str) else credential.scope,
    )
    return new.lasting(seconds_of(answer.get("expires_in")), now)


def refused(status: int, answer: dict[str, Any], what: str) -> NotAuthorized:
    """The failure behind a refusal of an authorization server. Of its words only the code is told: the rest may
    repeat what we sent."""
    word = answer.get("error")
    word = word if isinstance(word, str) and _WORD.fullmatch(word) else ""
    said = f"{status} {word}".strip()
    if word in ("invalid_grant", "invalid_client", "unauthorized_client"):
        reason = f"the authorization server no longer accepts our login ({said})"
        return NotAuthorized(reason, code="E-AUTH-LOGIN", fix="log in again")
    reason = f"the authorization server did not {what} ({said})"
    return NotAuthorized(reason, code="E-AUTH-SERVER", fix="try again later; the token we have is kept")


def seconds_of(value: object) -> float | None:
    """How long a token lives, as far as the answer says; some write the number as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        return None
    return float(value)


def _sendable(token: str) -> bool:
    return token.isascii() and token.isprintable() and " " not in token


def _unusable(how: str) -> NotAuthorized:
    reason = f"the authorization server's answer {how}, so it was not taken"
    return NotAuthorized(reason, code="E-AUTH-ANSWER", fix="report it to its operator; the token we have is kept")


def answer_of(body: bytes) -> dict[str, Any]:
    """The object that an answer is; an empty one where it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

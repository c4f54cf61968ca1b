"""Refresh and revocation requests, and validation of the refresh response. No I/O.

The SDK can refresh too, but it drops the token if that fails, accepts any returned scope, and after a restart sends the
request to the server's own origin instead of the issuer.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from toolway.auth.token_store import Credential, OAuthClient
from toolway.types import AuthError

_ERROR_CODE = re.compile(r"[a-z_]{1,40}")


def refresh_request(credential: Credential) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form and headers of the request that refreshes `credential` at its issuer."""
    assert credential.refresh is not None
    form = {"grant_type": "refresh_token", "refresh_token": credential.refresh}
    if credential.resource is not None:
        form["resource"] = credential.resource
    return _add_client_auth(credential.client, form)


def revocation_request(credential: Credential) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form and headers of the request that revokes `credential` at its issuer.

    The request contains the refresh token, or the access token if the credential has no refresh token.
    """
    if credential.refresh is not None:
        return _add_client_auth(credential.client, {"token": credential.refresh, "token_type_hint": "refresh_token"})
    return _add_client_auth(credential.client, {"token": credential.access, "token_type_hint": "access_token"})


def _add_client_auth(client: OAuthClient, form: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return form and headers of a request, with the OAuth client's id and secret added.

    The client's authentication method decides whether the secret is sent in the form or in the Authorization header.
    """
    form = {**form, "client_id": client.id}
    headers = {"Accept": "application/json"}
    if client.secret is not None and client.method == "client_secret_basic":
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif client.secret is not None and client.method == "client_secret_post":
        form["client_secret"] = client.secret
    return form, headers


def parse_refresh_response(credential: Credential, status: int, body: bytes, now: float) -> Credential:
    """Return the new credential from the issuer's response to a refresh of `credential`.

    Raises `AuthError` if the status is not 200, if the token is missing or unusable, or if the response names
    another issuer or more scope.
    """
    response = parse_json_object(body)
    if status != 200:
        raise rejection_error(status, response, "refresh the token")
    access, refresh, scope = response.get("access_token"), response.get("refresh_token"), response.get("scope")
    if not isinstance(access, str) or not is_usable_token(access):
        raise _response_error("contains no usable token")
    if str(response.get("token_type", "")).lower() != "bearer":
        raise _response_error("has an unknown token type")
    if response.get("iss", response.get("issuer", credential.issuer)) != credential.issuer:
        raise _response_error("names another issuer")
    if isinstance(scope, str) and credential.scope is not None and set(scope.split()) - set(credential.scope.split()):
        raise _response_error("grants more scope than was requested")
    new = replace(
        credential,
        access=access,
        refresh=refresh if isinstance(refresh, str) and refresh else credential.refresh,
        scope=scope if isinstance(scope, str) else credential.scope,
    )
    return new.with_expiry(parse_expires_in(response.get("expires_in")), now)


def rejection_error(status: int, response: dict[str, Any], action: str) -> AuthError:
    """Return the `AuthError` for a request that an authorization server rejected.

    Only the OAuth error code of the response is shown, because the rest may repeat secrets that were sent.
    """
    error_code = response.get("error")
    error_code = error_code if isinstance(error_code, str) and _ERROR_CODE.fullmatch(error_code) else ""
    status_text = f"{status} {error_code}".strip()
    if error_code in ("invalid_grant", "invalid_client", "unauthorized_client"):
        reason = f"the authorization server no longer accepts the login ({status_text})"
        return AuthError(reason, code="E-AUTH-LOGIN", hint="log in again")
    reason = f"the authorization server did not {action} ({status_text})"
    return AuthError(reason, code="E-AUTH-SERVER", hint="try again later; the current token is kept")


def parse_expires_in(value: object) -> float | None:
    """Return `expires_in` of a token response in seconds, or None if it is missing or invalid.

    A string of digits is accepted, because some servers send that.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        return None
    return float(value)


def is_usable_token(token: str) -> bool:
    """Return True if the token is not empty and safe in an HTTP header: printable ASCII without spaces."""
    return token != "" and token.isascii() and token.isprintable() and " " not in token


def _response_error(problem: str) -> AuthError:
    reason = f"the authorization server's response {problem}, so it was rejected"
    hint = "report it to whoever runs the server; the current token is kept"
    return AuthError(reason, code="E-AUTH-ANSWER", hint=hint)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`, or an empty dict if `body` is not a JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

"""The `auth` of an entry → `OAuth`. Values are never repeated in messages: most of them are secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from toolway.config.fields import Fields
from toolway.config.spec import Grant, OAuth


def read(fields: Fields) -> OAuth | None:
    """Raises `ConfigError`. What another host means by `auth` is left alone."""
    given = fields.rest.get("auth")
    if given == "oauth":
        given = {"type": "oauth"}
    if not isinstance(given, Mapping) or given.get("type") != "oauth":
        if given is not None:
            fix = 'write "auth": {"type": "oauth", …}, or give a fixed token under `headers`'
            fields.warn("auth is not of a kind that is known", evidence="it is kept and has no effect", fix=fix)
        return None
    del fields.rest["auth"]
    inner = Fields({key: value for key, value in given.items() if key != "type"}, fields.variables)
    default = OAuth()
    auth = OAuth(
        grant=cast(Grant, inner.choice("grant", get_args(Grant), default.grant)),
        issuer=inner.text("issuer"),
        client_id=inner.text("clientId"),
        client_secret=inner.text("clientSecret"),
        private_key=inner.text("privateKey"),
        algorithm=inner.text("algorithm") or default.algorithm,
        client_metadata_url=inner.text("clientMetadataUrl"),
        scopes=_scopes(inner),
        redirect_uri=inner.text("redirectUri") or default.redirect_uri,
    )
    fields.problems += inner.problems
    for key in inner.rest:
        fields.warn(f"auth.{key} is not known", evidence="it is kept and has no effect")
    if inner.rest:
        fields.rest["auth"] = inner.rest
    return auth


def _scopes(inner: Fields) -> tuple[str, ...]:
    """A list, or one text as OAuth itself writes it."""
    if isinstance(inner.rest.get("scopes"), str):
        return tuple((inner.text("scopes") or "").split())
    return inner.texts("scopes")

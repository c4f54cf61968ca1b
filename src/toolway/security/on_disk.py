"""Renewing a token that lies on disk: what the errand does, or whoever could send none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from toolway.addresses import Addresses
from toolway.model import NotAuthorized
from toolway.security.kept import in_place_of
from toolway.security.sealed_tokens import SealedTokens, Unreadable
from toolway.security.shelf import Now, renewed_by_issuer, store_failed
from toolway.security.tokens import Credential


async def renew_on_disk(
    store: SealedTokens, upstream: str, principal: str, held: Credential, reach: Addresses, now: Now
) -> None:
    """Renew `held` and put what comes of it in its place. Raises `NotAuthorized`."""

    def put(new: Credential) -> None:
        store.change(upstream, principal, partial(in_place_of, held, new))

    try:
        new = await renewed_by_issuer(held, reach, now)
    except NotAuthorized as trouble:
        if trouble.code == "E-AUTH-LOGIN":
            put(replace(held, refresh=None))  # nobody has to hear it again from the issuer
        raise
    try:
        put(new)
    except (OSError, Unreadable) as exc:
        raise store_failed(exc) from exc

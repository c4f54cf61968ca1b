"""Renewing a token that lies on disk: what the errand does, or whoever could send none."""

from __future__ import annotations

from dataclasses import replace

from toolway.addresses import Addresses
from toolway.model import NotAuthorized
from toolway.security.sealed_tokens import Kept, SealedTokens, Unreadable
from toolway.security.shelf import Now, renewed_by_issuer, store_failed
from toolway.security.tokens import Credential


async def renew_on_disk(
    store: SealedTokens, upstream: str, principal: str, held: Credential, reach: Addresses, now: Now
) -> None:
    """Renew `held` and put what comes of it in its place, unless something else lies there by then: a new login goes
    before. Raises `NotAuthorized`."""

    def in_place_of_it(new: Credential) -> None:
        def change(kept: Kept) -> Kept:
            there = kept.get(held.issuer)
            return {**kept, held.issuer: new} if there is not None and there.access == held.access else kept

        store.change(upstream, principal, change)

    try:
        new = await renewed_by_issuer(held, reach, now)
    except NotAuthorized as trouble:
        if trouble.code == "E-AUTH-LOGIN":
            in_place_of_it(replace(held, refresh=None))  # nobody has to hear it again from the issuer
        raise
    try:
        in_place_of_it(new)
    except (OSError, Unreadable) as exc:
        raise store_failed(exc) from exc

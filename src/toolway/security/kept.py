"""What is kept for one server and one principal: a credential of each issuer. Pure."""

from __future__ import annotations

from typing import Final

from toolway.security.tokens import Credential

ISSUERS: Final = 8  # of one server, for one principal; the oldest is forgotten

Kept = dict[str, Credential]  # by issuer, the last one put last


def with_one(kept: Kept, issuer: str, credential: Credential) -> Kept:
    after = {**without(kept, issuer), issuer: credential}
    return dict(list(after.items())[-ISSUERS:])


def without(kept: Kept, issuer: str) -> Kept:
    return {each: credential for each, credential in kept.items() if each != issuer}


def in_place_of(held: Credential, new: Credential, kept: Kept) -> Kept:
    """What was renewed gives way, unless something else lies there by then: a new login goes before."""
    there = kept.get(held.issuer)
    return {**kept, held.issuer: new} if there is not None and there.access == held.access else kept

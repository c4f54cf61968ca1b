"""Sending with a credential that somebody else keeps, and once more with another one where the server wants that.

A request that was refused for its credential was not executed, so it may be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from toolway.model import Attempt, Authorizer, Certainty, NotAuthorized, Refusal
from toolway.upstream.border import PERSONAL
from toolway.upstream.link import Fault
from toolway.upstream.transports.http1.client import HeaderBlock, header_block

T = TypeVar("T")

NONE: Final = header_block({})
RENEWALS: Final = 4  # of one request, whatever its server says
STATUSES: Final = (401, 403)


async def authorized(
    authorizer: Authorizer, what: str, send: Callable[[HeaderBlock], Awaitable[T]], attempt: Attempt | None = None
) -> T:
    """What `send` gives, with the credential in its headers. Raises `Fault`."""
    if attempt is not None and attempt.caller and not authorizer.serves(attempt.caller):
        raise Fault("the credential of this link is another's", Certainty.C0, code=PERSONAL)
    asked_for_another = False  # by 401, which is answered once
    for last in [False] * RENEWALS + [True]:
        if attempt is not None:
            attempt.phase = "auth"
        sent = await credential(authorizer)
        if attempt is not None:
            attempt.phase = "send"
        try:
            return await send(_block(sent))
        except Fault as fault:
            if fault.status not in STATUSES or fault.certainty is not Certainty.C1:
                raise
            refusal = Refusal(fault.status, fault.challenge or "", sent, what)
            if last or (asked_for_another and fault.status == 401):
                authorizer.refused_again(refusal)
                raise
            asked_for_another = asked_for_another or fault.status == 401
            if attempt is not None:
                attempt.certainty = Certainty.C0  # the next sending is the first that counts
                attempt.phase = "auth"
            if not await _another(authorizer, refusal, attempt):
                raise
    raise AssertionError("the last round returns or raises")


async def credential(authorizer: Authorizer) -> str:
    """Raises `Fault`: without the credential nothing is sent."""
    try:
        return await authorizer.authorization()
    except NotAuthorized as exc:
        raise Fault(exc.reason, Certainty.C0, code=exc.code, fix=exc.fix) from None


async def _another(authorizer: Authorizer, refusal: Refusal, attempt: Attempt | None) -> bool:
    """Whether there is another credential. The time of a person who logs in is not the call's. Raises `Fault`."""
    clock = asyncio.get_running_loop().time
    pausing = attempt is not None and authorizer.interactive
    if attempt is not None and pausing:
        attempt.ask_begins(clock())
    try:
        return await authorizer.challenged(refusal)
    except NotAuthorized as exc:
        status = refusal.status
        raise Fault(exc.reason, Certainty.C1, code=exc.code, status=status, fix=exc.fix) from None
    finally:
        if attempt is not None and pausing:
            attempt.ask_ends(clock())


def _block(value: str) -> HeaderBlock:
    return header_block({"Authorization": value}) if value else NONE

"""Progress reaches the call whose token it names, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.machines.upstreams import RejectingCallbacks
from tests.upstream.scripted_transport import ScriptedLink
from toolway.types import Json
from toolway.upstream.session import Session

pytestmark = pytest.mark.anyio


async def unanswered(_: Any) -> Json:
    raise AssertionError("nothing is asked")


@pytest.mark.parametrize("token", [True, 1.0, "1", None, [1], 2, 0])
@pytest.mark.attack("held-33")
async def test_progress_with_unknown_token_is_ignored(token: Any) -> None:
    session = Session("s", ScriptedLink(unanswered), RejectingCallbacks(), lambda *_: None)
    told: list[float] = []
    assert session._register_progress(lambda progress, total, message: told.append(progress)) == 1
    session.on_notification("notifications/progress", {"progressToken": token, "progress": 5})
    assert told == []
    session.on_notification("notifications/progress", {"progressToken": 1, "progress": 6})
    assert told == [6]

from __future__ import annotations

from toolway.model import Refusal
from toolway.security.patience import PAUSE, REMEMBERED, ROUNDS, Patience

MORE = 'Bearer error="insufficient_scope", scope="a"'


def test_a_401_is_answered_until_the_new_credential_is_refused_too() -> None:
    patience, refusal = Patience(), Refusal(401, "", "Bearer one")
    assert patience.grants(refusal, 0.0) and patience.grants(refusal, 1.0)
    patience.ends_for("Bearer one", 2.0)
    assert not patience.grants(refusal, 3.0)
    assert patience.grants(Refusal(401, "", "Bearer two"), 3.0)
    assert patience.grants(refusal, 2.0 + PAUSE)


def test_more_scope_is_asked_for_a_few_times_for_each_tool() -> None:
    patience = Patience()
    for what in ("tools/call a", "tools/call b"):
        granted = [patience.grants(Refusal(403, MORE, f"Bearer {n}", what), 0.0) for n in range(5)]
        assert granted == [True] * ROUNDS + [False] * (5 - ROUNDS)
    assert patience.grants(Refusal(403, MORE, "Bearer x", "tools/call a"), PAUSE)


def test_another_403_is_a_no() -> None:
    for challenge in ("", "Bearer", 'Bearer error="invalid_token"', 'Bearer realm="insufficient_scope"'):
        assert not Patience().grants(Refusal(403, challenge, "Bearer x", "w"), 0.0)


def test_what_is_remembered_is_bounded() -> None:
    patience = Patience()
    for number in range(REMEMBERED + 50):
        patience.grants(Refusal(403, MORE, "Bearer x", f"tools/call {number}"), 0.0)
    assert len(patience._rounds) == REMEMBERED

from __future__ import annotations

from toolway.auth.token_manager import BLOCK_S, MAX_COUNTED_OPERATIONS, MAX_SCOPE_CHALLENGES, ChallengeLimiter
from toolway.types import AuthChallenge

MORE = 'Bearer error="insufficient_scope", scope="a"'


def test_401_is_answered_until_new_credential_is_rejected() -> None:
    patience, refusal = ChallengeLimiter(), AuthChallenge(401, "", "Bearer one")
    assert patience.allow(refusal, 0.0) and patience.allow(refusal, 1.0)
    patience.block("Bearer one", 2.0)
    assert not patience.allow(refusal, 3.0)
    assert patience.allow(AuthChallenge(401, "", "Bearer two"), 3.0)
    assert patience.allow(refusal, 2.0 + BLOCK_S)


def test_more_scope_is_requested_a_few_times_per_tool() -> None:
    patience = ChallengeLimiter()
    for what in ("tools/call a", "tools/call b"):
        granted = [patience.allow(AuthChallenge(403, MORE, f"Bearer {n}", what), 0.0) for n in range(5)]
        assert granted == [True] * MAX_SCOPE_CHALLENGES + [False] * (5 - MAX_SCOPE_CHALLENGES)
    assert patience.allow(AuthChallenge(403, MORE, "Bearer x", "tools/call a"), BLOCK_S)


def test_other_403_is_not_answered() -> None:
    for challenge in ("", "Bearer", 'Bearer error="invalid_token"', 'Bearer realm="insufficient_scope"'):
        assert not ChallengeLimiter().allow(AuthChallenge(403, challenge, "Bearer x", "w"), 0.0)


def test_challenge_counts_are_bounded() -> None:
    patience = ChallengeLimiter()
    for number in range(MAX_COUNTED_OPERATIONS + 50):
        patience.allow(AuthChallenge(403, MORE, "Bearer x", f"tools/call {number}"), 0.0)
    assert len(patience._scope_challenges) == MAX_COUNTED_OPERATIONS

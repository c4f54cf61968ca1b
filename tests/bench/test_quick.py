"""The guard of every push."""

import json

from bench.quick import _ASKED, ACCEPTED, GUARDS, TOLERANCE, compare

COSTS = {spot: 10.0 for guard in GUARDS for spot in (guard.own, guard.other)}


def test_a_ratio_that_fell_by_more_than_noise_is_dearer():
    guard = GUARDS[0]
    accepted = dict.fromkeys((one.name for one in GUARDS), 1.0)
    assert [one.name for one in compare(COSTS, accepted) if one.fell] == []
    slower = {**COSTS, guard.own: 10.0 / (TOLERANCE - 0.01)}
    assert guard.name in [one.name for one in compare(slower, accepted) if one.fell]
    noisy = {**COSTS, guard.own: 10.0 / (TOLERANCE + 0.01)}
    assert guard.name not in [one.name for one in compare(noisy, accepted) if one.fell]


def test_what_nobody_has_accepted_yet_cannot_have_fallen():
    assert not any(one.fell for one in compare(COSTS, {}))


def test_every_guard_is_measured():
    measured = {(name, str(behind), work) for behind, asked in _ASKED.items() for name in asked for work in asked[name]}
    measured |= {(who, kind, "library") for who in ("hub", "sdk") for kind in ("http", "stdio")}
    assert set(COSTS) <= measured


def test_every_guard_has_an_accepted_figure():
    assert set(json.loads(ACCEPTED.read_text())) == {guard.name for guard in GUARDS}

"""The check of every push."""

import json

import pytest

from bench import quick
from bench.quick import _PLANNED, ACCEPTED, CHECKS, TOLERANCE, compare

COSTS = {measurement: 10.0 for check in CHECKS for measurement in (check.own, check.other)}


def test_ratio_below_tolerance_is_a_regression():
    check = CHECKS[0]
    accepted = dict.fromkeys((one.name for one in CHECKS), 1.0)
    assert [one.name for one in compare(COSTS, accepted) if one.regressed] == []
    slower = {**COSTS, check.own: 10.0 / (TOLERANCE - 0.01)}
    assert check.name in [one.name for one in compare(slower, accepted) if one.regressed]
    noisy = {**COSTS, check.own: 10.0 / (TOLERANCE + 0.01)}
    assert check.name not in [one.name for one in compare(noisy, accepted) if one.regressed]


def test_check_without_accepted_figure_cannot_regress():
    assert not any(one.regressed for one in compare(COSTS, {}))


def test_every_check_is_measured():
    measured = {
        (name, str(behind), work) for behind, planned in _PLANNED.items() for name in planned for work in planned[name]
    }
    measured |= {(client, kind, "library") for client in ("hub", "sdk") for kind in ("http", "stdio")}
    assert set(COSTS) <= measured


def test_every_check_has_an_accepted_figure():
    assert set(json.loads(ACCEPTED.read_text())) == {check.name for check in CHECKS}


def test_turn_without_cpu_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("toolway", "http", "echo × 16")
    monkeypatch.setattr(quick, "_libraries", lambda: ())
    monkeypatch.setattr(quick, "_gateways", lambda: ((own, 0.0), (own, 50.0), (own, 40.0)))
    assert quick.measure_costs() == {own: 40.0}
    monkeypatch.setattr(quick, "_gateways", lambda: ((own, 0.0),))
    with pytest.raises(RuntimeError, match="no CPU time"):
        quick.measure_costs()

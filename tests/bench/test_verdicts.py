"""Verdicts on targets: reached, not reached, not measured."""

import pytest

from bench import profiling
from bench.verdicts import at_most, ratio, table, verdicts


def cell(peer, rate, cpu_us=None, behind="http", work="echo", era="modern", connections=16, **more):
    return {
        "peer": peer,
        "behind": behind,
        "work": work,
        "era": era,
        "connections": connections,
        "rate": rate,
        "cpu_us": cpu_us,
        "errors": 0,
        **more,
    }


def result(*rows):
    return {"rows": list(rows)}


def verdict(word, *rows):
    (found,) = [one for one in verdicts(result(*rows)) if word in one.target]
    return found


def both(peer, rate, cpu_us):
    return [cell(peer, rate, cpu_us, connections=n) for n in (16, 64)]


def test_target_must_be_reached_by_rate_and_cpu():
    target = "echo, HTTP server, against Envoy's MCP router"
    assert verdict(target, *both("toolway", 100, 10)).reached is None
    found = verdict(target, *both("toolway", 100, 10), *both("envoy", 50, 20))
    assert found.reached is True
    assert found.measured == "× 16: 2 calls/s, 2 CPU; × 64: 2 calls/s, 2 CPU"


@pytest.mark.parametrize(("rate", "cpu_us"), [(120, 20), (50, 9)])
def test_one_of_both_figures_is_not_enough(rate, cpu_us):
    own = {n: cell("toolway", 100, 10, connections=n) for n in (16, 64)}
    other = {16: cell("envoy", 50, 20), 64: cell("envoy", rate, cpu_us, connections=64)}
    assert ratio("", 1.0, own.get, other.get, (16, 64)).reached is False


def test_partly_measured_target_has_no_verdict():
    own, other = {16: cell("toolway", 100, 10)}, {16: cell("envoy", 50, 20)}
    assert ratio("", 1.0, own.get, other.get, (16, 64)).reached is None


def test_peer_without_results_is_slower_and_failed_peer_skipped():
    own, late = {16: cell("toolway", 100, 10)}, {16: cell("litellm", 0)}
    assert ratio("", 10.0, own.get, late.get, (16,)).reached is True
    assert ratio("", 10.0, late.get, own.get, (16,)).reached is None
    broken = {16: {**late[16], "errors": 5}}
    assert ratio("", 10.0, own.get, broken.get, (16,)).reached is None


def test_best_python_gateway_is_fastest_with_any_era():
    rows = [*both("toolway", 1000, 10), *both("fastmcp", 10, 1000), *both("envoy", 900, 11)]
    rows += [cell("mcpo", 90, 110, era="rest", connections=n) for n in (16, 64)]
    found = verdict("best other Python", *rows)
    assert found.reached is True
    assert found.measured.startswith("× 16: 11.1 calls/s, 11 CPU")


def test_added_time_is_difference_to_direct_calls():
    own = cell("toolway", 1, connections=1, p50=0.13, p99=2.0)
    direct = cell("direct", 1, connections=1, p50=0.02, p99=0.1)
    assert verdict("p50 added", own, direct).reached is True
    assert verdict("p99 added", own, direct).reached is False


def test_limit_may_be_met_exactly():
    assert at_most("", 64.0, 64.0, "kB").reached is True
    assert at_most("", 64.1, 64.0, "kB").reached is False
    assert at_most("", None, 64.0, "kB").reached is None


def test_memory_per_server_is_growth_from_10_to_1000():
    rows = [cell("toolway", 0, behind=f"{n} http", work="memory", mb=mb) for n, mb in ((10, 50.0), (1000, 149.0))]
    found = verdict("memory of an idle", *rows)
    assert (found.measured, found.reached) == ("100", False)


def test_stored_list_counts_only_if_complete():
    part = cell("toolway", 0, behind="18 stdio", work="kept list", connections=1, seconds=0.01, items=340)
    assert verdict("from the stored catalog, toolway", part).reached is None
    assert verdict("from the stored catalog, toolway", {**part, "items": 360}).reached is True


def test_table_has_every_target_even_for_empty_run():
    lines = table(result()).splitlines()[2:]
    assert len(lines) == len(verdicts(result())) > 25
    assert all(line.endswith("| not measured |") for line in lines)


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (("/home/me/toolway/src/toolway/gateway/routes.py", 10, "answer"), "toolway/gateway"),
        (("/home/me/toolway/src/toolway/errors.py", 10, "describe"), "toolway/errors"),
        (("~", 0, "<method 'decode' of 'msgspec.json.Decoder' objects>"), "reading and writing JSON (C)"),
        (("~", 0, "<method 'send' of '_socket.socket' objects>"), "sockets and pipes (C)"),
        (("~", 0, "<built-in method builtins.len>"), "other built-in functions (C)"),
        (("/usr/lib/python3.11/asyncio/events.py", 10, "_run"), "standard library"),
    ],
)
def test_profile_functions_are_grouped_by_part(function: tuple[str, int, str], part: str) -> None:
    assert profiling._part_of(function) == part

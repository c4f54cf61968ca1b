"""A run is written line by line, can be gone on with, and is made short by medians."""

import pytest

from bench.journal import Journal, medians, newest, place, read, result

ABOUT = {"date": "2026-11-15", "machine": {}, "settings": {}, "peers": {"envoy": {"title": "Envoy"}}, "absent": {}}


def row(rate, turn=0, peer="envoy", **more):
    return {
        "peer": peer,
        "behind": "http",
        "work": "echo",
        "era": "modern",
        "connections": 16,
        "turn": turn,
        "rate": rate,
        "errors": 0,
        **more,
    }


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "run.jsonl"


def test_a_cell_is_the_median_of_its_turns_and_counts_all_errors():
    (short,) = medians([row(10.0, 0), row(1000.0, 1, errors=2, first_error="late"), row(11.0, 2)])
    assert (short["rate"], short["turns"], short["errors"], short["said"]) == (11.0, 3, 2, "late")
    assert short["spread"] == 90.0


def test_a_figure_that_is_missing_in_a_turn_is_not_nought():
    (short,) = medians([row(10.0, cpu_us=None), row(12.0, 1, cpu_us=5.0)])
    assert short["cpu_us"] == 5.0


def test_a_run_that_was_ended_goes_on_with_what_is_missing(file):
    first = Journal(file, "1", ABOUT)
    first.add(row(10.0))
    again = Journal(file, "2", ABOUT, resume=True)
    assert again.session == "1"
    assert again.has(place(row(0.0)), 0)
    assert not again.has(place(row(0.0)), 1)
    again.add(row(20.0, 1))
    assert result(file)["rows"][0]["rate"] == 15.0


def test_a_line_that_is_not_whole_does_not_swallow_the_next(file):
    Journal(file, "1", ABOUT).add(row(10.0))
    with file.open("a") as half:
        half.write('{"session": "1", "peer": "env')  # it was ended in the middle of it
    Journal(file, "1", ABOUT, resume=True).add(row(20.0, 1))
    abouts, rows = read(file)
    assert ([one["session"] for one in abouts], [one["rate"] for one in rows]) == (["1", "1"], [10.0, 20.0])


def test_to_go_on_with_nothing_is_to_begin(file):
    assert Journal(file, "7", ABOUT, resume=True).session == "7"


def test_what_is_measured_again_replaces_the_old_and_the_rest_stays(file):
    old = Journal(file, "1", {**ABOUT, "peers": {"envoy": {"title": "E"}, "litellm": {"title": "L"}}})
    for turn in range(3):
        old.add(row(10.0, turn))
        old.add(row(1.0, turn, peer="litellm"))
    Journal(file, "2", ABOUT).add(row(30.0))
    short = result(file)
    assert {one["peer"]: (one["rate"], one["turns"]) for one in short["rows"]} == {
        "envoy": (30.0, 1),
        "litellm": (1.0, 3),
    }
    assert set(short["peers"]) == {"envoy", "litellm"}


def test_who_could_not_be_had_at_first_is_absent_no_longer(file):
    Journal(file, "1", {**ABOUT, "peers": {}, "absent": {"envoy": "no network"}})
    assert result(file)["absent"] == {"envoy": "no network"}
    Journal(file, "2", ABOUT)
    assert result(file)["absent"] == {}


def test_the_newest_session_is_the_one_that_began_last_whatever_the_order_of_lines():
    rows = [{**row(2.0), "session": "2026-11-15T10"}, {**row(1.0), "session": "2026-11-15T09"}]
    assert [one["rate"] for one in newest(rows)] == [2.0]


def test_a_part_that_was_finished_is_no_figure(file):
    kept = Journal(file, "1", ABOUT)
    kept.add(row(0.0, work="done"))
    assert result(file)["rows"] == []

"""The file of a run: written line by line, resumable, summarized by medians."""

import pytest

from bench.journal import Journal, medians, newest, read, result, row_key

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


def test_cell_is_the_median_of_its_turns_and_sums_errors():
    (short,) = medians([row(10.0, 0), row(1000.0, 1, errors=2, first_error="late"), row(11.0, 2)])
    assert (short["rate"], short["turns"], short["errors"], short["said"]) == (11.0, 3, 2, "late")
    assert short["spread"] == 90.0


def test_missing_figure_does_not_count_as_zero():
    (short,) = medians([row(10.0, cpu_us=None), row(12.0, 1, cpu_us=5.0)])
    assert short["cpu_us"] == 5.0


def test_resumed_run_measures_only_missing_turns(file):
    first = Journal(file, "1", ABOUT)
    first.add(row(10.0))
    again = Journal(file, "2", ABOUT, resume=True)
    assert again.session == "1"
    assert again.has(row_key(row(0.0)), 0)
    assert not again.has(row_key(row(0.0)), 1)
    again.add(row(20.0, 1))
    assert result(file)["rows"][0]["rate"] == 15.0


def test_incomplete_line_does_not_damage_next_line(file):
    Journal(file, "1", ABOUT).add(row(10.0))
    with file.open("a") as half:
        half.write('{"session": "1", "peer": "env')  # the run was interrupted here
    Journal(file, "1", ABOUT, resume=True).add(row(20.0, 1))
    abouts, rows = read(file)
    assert ([one["session"] for one in abouts], [one["rate"] for one in rows]) == (["1", "1"], [10.0, 20.0])


def test_resuming_an_empty_file_starts_a_new_session(file):
    assert Journal(file, "7", ABOUT, resume=True).session == "7"


def test_new_measurement_replaces_old_and_keeps_the_rest(file):
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


def test_peer_installed_later_is_no_longer_absent(file):
    Journal(file, "1", {**ABOUT, "peers": {}, "absent": {"envoy": "no network"}})
    assert result(file)["absent"] == {"envoy": "no network"}
    Journal(file, "2", ABOUT)
    assert result(file)["absent"] == {}


def test_newest_session_is_chosen_by_start_time():
    rows = [{**row(2.0), "session": "2026-11-15T10"}, {**row(1.0), "session": "2026-11-15T09"}]
    assert [one["rate"] for one in newest(rows)] == [2.0]


def test_marker_of_finished_part_is_not_a_figure(file):
    journal = Journal(file, "1", ABOUT)
    journal.add(row(0.0, work="done"))
    assert result(file)["rows"] == []

"""Decisions of the command line that work without a server: columns, times, next steps, new lines of a log."""

import pytest

from toolway.cli.commands.diagnostics import new_lines
from toolway.cli.exit_codes import SetupState, choose_next_step
from toolway.cli.output import apply_style, display_width, format_age, format_duration, format_rows, truncate


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "just now"), (42, "42 s ago"), (300, "5 min ago"), (7300, "2 h ago"), (86400 * 3, "3 days ago")],
)
def test_format_age(seconds, text):
    assert format_age(seconds) == text


def test_format_duration_has_no_ago():
    assert format_duration(59.9) == "59 s"


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ([], ["a"], ["a"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b"], ["a", "b", "c"], ["c"]),
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),  # the oldest line is no longer known
        (["a", "a"], ["a", "a", "a"], ["a"]),
        (["a", "b"], ["x", "y"], ["x", "y"]),  # too much was written in the meantime
    ],
)
def test_only_new_log_lines_are_shown(before, now, new):
    assert new_lines(before, now) == new


@pytest.mark.parametrize(
    ("known", "command"),
    [
        (SetupState(), "toolway init"),
        (SetupState(client_servers=3), "toolway init"),
        (SetupState(servers=2, never_queried=1), "toolway doctor"),
        (SetupState(servers=2, unusable_entries=1, never_queried=1), "toolway config validate"),
        (SetupState(servers=2, unusable_entries=1, untrusted_files=1), "toolway trust"),
        (SetupState(servers=2), "toolway serve"),
        (SetupState(servers=2, gateway_running=True), "toolway tools WORD"),
        (SetupState(servers=2, gateway_running=True, down_servers=("github",)), "toolway doctor github"),
    ],
)
def test_next_step_is_the_first_missing_thing(known, command):
    assert choose_next_step(known).command == command


def test_display_width_counts_terminal_columns():
    assert [display_width(text) for text in ("abc", "né", "e\u0301", "日本")] == [3, 2, 1, 4]


def test_truncated_text_ends_with_ellipsis():
    assert truncate("a long text", 7) == "a long…"
    assert truncate("日本語", 5) == "日本…"
    assert truncate("fits", 4) == "fits"


def test_table_is_aligned_and_keeps_to_its_width():
    cells = [("name", "n", "about"), ("a-server", "7", "word " * 30), ("b", "12", "short")]
    cut = format_rows(cells, 40, right=frozenset({1}), cut=True)
    assert [cell for row in cut for [cell] in row[:2]] == ["name    ", " n", "a-server", " 7", "b       ", "12"]
    assert cut[1][2][0].endswith("…")
    wrapped = format_rows(cells, 40)
    assert len(wrapped[1][2]) > 3
    assert all(len(line) <= 40 - 8 - 2 - 4 for line in wrapped[1][2])
    assert format_rows(cells, None)[1][2] == ["word " * 30]


def test_long_name_shrinks_to_leave_room():
    [_, [[name], [about]]] = format_rows([("tool", "about"), ("x" * 100, "what it does")], 60, cut=True)
    assert display_width(name) + 2 + 16 <= 60
    assert name.rstrip().endswith("…")
    assert about == "what it does"


def test_table_fits_narrow_terminal():
    cells = [("server", "state", "why"), ("github", "down", "a variable is missing")]
    for row in format_rows(cells, 30, cut=True):
        assert sum(display_width(cell) for [cell] in row) + 2 * 2 <= 30


def test_styles_are_terminal_codes():
    assert apply_style("no", "bold red") == "\x1b[1;31mno\x1b[0m"

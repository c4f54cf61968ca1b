"""Which items an endpoint shows."""

from __future__ import annotations

import time

import pytest

from tests.timing import within
from toolway.gateway.tool_filter import ALL_TOOLS, NO_TOOLS, ToolFilter, filter_for_access, filter_for_server

NAMES = ("a.read", "a.write", "b.read", "ab.read", "b.a.read")


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (("*",), NAMES),
        ((), ()),
        (("a.*",), ("a.read", "a.write")),
        (("*.read",), ("a.read", "b.read", "ab.read", "b.a.read")),
        (("*", "!a.*"), ("b.read", "ab.read", "b.a.read")),
        (("!a.*", "*"), NAMES),  # the last one that fits decides
        (("a.*", "!*", "a.read"), ("a.read",)),
        (("a?.read",), ("ab.read",)),
        (("A.READ",), ()),
        (("a.rea",), ()),
        (("[ab].read",), ()),  # only `*` and `?` mean something
    ],
)
def test_patterns_apply_in_their_order(patterns: tuple[str, ...], chosen: tuple[str, ...]):
    assert tuple(name for name in NAMES if name in ToolFilter(patterns)) == chosen


@pytest.mark.parametrize(
    ("patterns", "touched", "whole"),
    [
        (("*",), "a ab b", "a ab b"),
        ((), "", ""),
        (("a.*",), "a", "a"),
        (("a.read",), "a", ""),
        (("a*",), "a ab", "a ab"),
        (("*.read",), "a ab b", ""),
        (("*", "!a.*"), "ab b", "ab b"),
        (("*", "!a.write"), "a ab b", "ab b"),
        (("*", "!a.*", "a.read"), "a ab b", "ab b"),
        (("a.?",), "a", ""),  # a name of one letter is not all that a server has
        (("!*",), "", ""),
    ],
)
def test_filter_knows_partly_and_fully_included_servers(patterns: tuple[str, ...], touched: str, whole: str):
    selection, servers = ToolFilter(patterns), ("a", "ab", "b")
    assert [s for s in servers if selection.may_include(s)] == touched.split()
    assert [s for s in servers if selection.includes_server(s)] == whole.split()


def test_union_includes_exactly_the_items_of_its_parts():
    both = ToolFilter.union([filter_for_server("a"), ToolFilter(("b.read",))])
    assert [name for name in NAMES if name in both] == ["a.read", "a.write", "b.read"]
    assert [s for s in ("a", "ab", "b") if both.may_include(s)] == ["a", "b"]
    assert both.includes_server("a") and not both.includes_server("b")
    none = ToolFilter.union([])
    assert not any(name in none for name in NAMES) and not none.may_include("a") and not none.includes_server("a")


def test_tool_excluded_by_one_part_may_be_in_another():
    both = ToolFilter.union([ToolFilter(("a.*", "!a.write")), ToolFilter(("a.write",))])
    assert "a.write" in both and "b.read" not in both


@pytest.mark.parametrize(
    ("groups", "chosen", "touched", "whole"),
    [
        ([], "", "", ""),
        ([()], "", "", ""),
        ([("a.*",), ("b.read",)], "a.read a.write b.read", "a b", "a"),
        ([("a.*", "!a.write"), ("*",)], "a.read b.read ab.read b.a.read", "a ab b", "ab b"),  # a denial is stronger
        ([("!a.write",), ("a.*",)], "a.read", "a", ""),
        ([("*",), ("!b.*",)], "a.read a.write ab.read", "a ab", "a ab"),
        ([("a.*", "!a.*", "a.read"), ("b.*",)], "a.read b.read b.a.read", "b", "b"),
        ([("!a.write", "a.write"), ("a.read",)], "a.read a.write", "a", ""),  # within a group the last match decides
    ],
)
def test_deny_of_one_user_group_wins_over_other_groups(
    groups: list[tuple[str, ...]], chosen: str, touched: str, whole: str
):
    access, servers = filter_for_access(groups), ("a", "ab", "b")
    assert [name for name in NAMES if name in access] == chosen.split()
    assert [s for s in servers if access.includes_server(s)] == whole.split()
    seen = [s for s in servers if access.may_include(s)]
    assert seen == touched.split() and {name.split(".")[0] for name in chosen.split()} >= set(whole.split())


def test_all_tools_and_no_tools_filters_match_as_named():
    assert all(name in ALL_TOOLS and name not in NO_TOOLS for name in NAMES)


def test_pattern_with_many_stars_is_matched_quickly():
    began = time.monotonic()
    assert "a." + "x" * 128 not in ToolFilter(("*a" * 40 + "*y",))
    assert time.monotonic() - began < within(2)

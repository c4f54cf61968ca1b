"""Random edits of random files: nothing but the intended change differs.

`make long-tests ARGS=edits` makes 10,000 of them; the usual run a few hundred.
"""

import copy
import os
import re
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config.editing.sample_texts import KEYS, NAMES, NEW_WORDS, ROOT, WORDS, WRITERS, entries
from toolway.config.editing.patch import REMOVED, apply_value

EDITS = int(os.environ.get("TOOLWAY_EDITS", "150"))  # of all three kinds together
FORMATS = ("json", "toml")
MODULES = {"json": "jsonc"}


@st.composite
def documents(draw, format):
    top = draw(st.dictionaries(st.sampled_from(["theme", "model", "zz"]), st.one_of(WORDS, st.booleans()), max_size=2))
    servers = draw(st.dictionaries(NAMES, entries(WORDS), max_size=4))
    tail = draw(st.dictionaries(st.sampled_from(["tail", "projects"]), entries(WORDS), max_size=1))
    whole = {**top, **({ROOT: servers} if servers or draw(st.booleans()) else {}), **tail}
    return WRITERS[format](draw).document(whole)


@st.composite
def edits(draw, value, format):
    """A path and what shall be there: a server or one of its keys, new, other or gone."""
    servers = value.get(ROOT, {})
    name = draw(st.sampled_from(sorted(servers)) if servers and draw(st.booleans()) else NAMES)
    new = draw(entries(NEW_WORDS))
    if name not in servers or draw(st.integers(0, 2)) == 0:
        return (ROOT, name), REMOVED if name in servers and draw(st.booleans()) else new
    entry = servers[name]
    key = draw(st.sampled_from(sorted(entry)) if entry and draw(st.booleans()) else KEYS)
    if key in entry and draw(st.booleans()):
        return (ROOT, name, key), REMOVED
    item = draw(st.sampled_from([*new.values(), "new", ["x"], {"k": "v"}]))
    if format == "toml" and isinstance(entry.get(key), dict) and not isinstance(item, dict):
        item = {"k": "v"}  # a table that becomes a pair has to move to where the pairs are
    return (ROOT, name, key), item


def expected(value, path, new):
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    if new is REMOVED:
        inner.pop(path[-1])
    else:
        inner[path[-1]] = new
    return value


@pytest.mark.parametrize("format", FORMATS)
def test_random_edit_changes_only_its_target(format):
    kind = import_module(f"toolway.config.editing.{MODULES.get(format, format)}")

    @settings(
        max_examples=-(-EDITS // len(FORMATS)),
        deadline=None,
        derandomize="TOOLWAY_EDITS" not in os.environ,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.data())
    def run(data):
        made = data.draw(documents(format))
        assert kind.parse_text(made.text) == made.value  # else the test writes wrong files
        path, new = data.draw(edits(made.value, format))
        after = apply_value(kind, made.text, path, new, "file")
        assert kind.parse_text(after) == expected(made.value, path, new)
        if path not in made.spans:
            check_added(made.text, after)
            return
        start, end = made.spans[path]
        if new is REMOVED:
            check_dropped(made.text[:start], made.text[end:], after, format)
        else:
            check_replaced(made.text[:start], made.text[end:], after)

    run()


# -- what an edit may touch --------------------------------------------------------------------------------------------


def check_added(before, after):
    """All that was there is there, in one piece but for the place of the addition; one comma may have come too."""
    head = alike(before, after)
    tail = alike(before[head:][::-1], after[head:][::-1])
    left, new = before[head : len(before) - tail], after[head : len(after) - tail]
    opened = left.strip().removeprefix("{}").strip()  # an empty map in one line has been opened
    kept = new.startswith(opened) or new.replace(",", "", 1).startswith(left)
    assert opened in ("", "{", "}") or kept, (left, new)
    assert "\n" not in left.strip()


def alike(one, other):
    """So many letters at the beginning are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def check_replaced(before, behind, after):
    """Before and behind the value every byte is the same; only empty lines at its edge may go."""
    assert after.startswith(before.rstrip())
    assert after.endswith(behind.lstrip())
    assert len(after) >= len(before.rstrip()) + len(behind.lstrip())


def check_dropped(before, behind, after, format):
    """The rest of its line goes with it if that is a comment, and one comma. A map that lost all says so in its place:
    `{}`, or its own header."""
    candidates = [after]
    if format == "toml":
        headers = re.finditer("(?:^|(?<=\ufeff))\\[mcp_servers[^\n]*\\]\r?\n", after, re.MULTILINE)
        candidates += [after[: found.start()] + after[found.end() :] for found in headers]
    assert any(_is_without(before, behind, each) for each in candidates), (before, behind, after)


def _is_without(before, behind, after):
    heads = [before.rstrip()]
    heads += [(before[:at] + before[at + 1 :]).rstrip() for at in range(len(before)) if before[at] == ","][-3:]
    line, newline, rest = behind.partition("\n")
    tails = [behind.lstrip(" \t\r\n,")]
    if not line.strip(" ,\r") or line.strip(" ,").startswith(("#", "//", "/*")):
        tails.append(rest.lstrip() if newline else "")
    return any(
        after.startswith(head) and after.endswith(tail) and not after[len(head) : len(after) - len(tail)].strip()
        for head in heads
        for tail in tails
        if len(head) + len(tail) <= len(after)
    )

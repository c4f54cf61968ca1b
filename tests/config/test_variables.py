import pytest

from toolway.config.variables import UnsetVariable, expand_home, expand_to_pieces


def expanded(text, variables):
    """The text with its variables filled in, and the names of those that are not set."""
    pieces = expand_to_pieces(text, variables)
    unset = dict.fromkeys(piece.name for piece in pieces if isinstance(piece, UnsetVariable))
    return "".join(str(piece) for piece in pieces), tuple(unset)


def test_variable_is_expanded_in_each_spelling():
    variables = {"TOKEN": "t1", "HOST": "h"}
    assert expanded("a ${TOKEN} b ${env:HOST} c", variables) == ("a t1 b h c", ())


def test_default_is_used_only_if_variable_is_unset():
    assert expanded("${A:-x}/${B:-y}/${C:-}", {"A": "1", "B": ""})[0] == "1//"


def test_unset_variable_stays_literal_and_is_reported_once():
    assert expanded("${NOPE}-${NOPE}-${env:ALSO}", {}) == ("${NOPE}-${NOPE}-${env:ALSO}", ("NOPE", "ALSO"))


@pytest.mark.attack("held-64")
def test_expanded_value_is_not_expanded_again():
    assert expanded("${A}", {"A": "${B}", "B": "secret"})[0] == "${B}"


def test_non_variables_are_left_alone():
    text = "$HOME $$ ${} ${1} ${input:key} {env:X} %X% ${A-B}"
    assert expanded(text, {"HOME": "/h", "X": "x", "A": "a"}) == (text, ())


def test_unclosed_default_is_left_alone():
    assert expanded("${A} ${B:-x ${A", {"A": "1"}) == ("1 ${B:-x ${A", ())
    assert expanded("${B:-x ${A} ${A}", {"A": "1"})[0] == "x ${A 1"


def test_home_is_expanded_only_at_the_start():
    assert expand_home("~/bin/x", {"HOME": "/home/me"}) == "/home/me/bin/x"
    assert expand_home("~", {"HOME": "/home/me"}) == "/home/me"
    assert expand_home("/a/~/b", {"HOME": "/home/me"}) == "/a/~/b"
    assert expand_home("~other/x", {"HOME": "/home/me"}) == "~other/x"

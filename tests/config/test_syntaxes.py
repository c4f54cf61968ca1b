import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolway.config.expand import expand
from toolway.config.syntaxes import (
    BRACES,
    CURLY,
    CURSOR,
    DOLLARS,
    EDITOR,
    FILES,
    NONE,
    OURS,
    PERCENT,
    SECRETS,
    Ref,
    literal,
    misread,
    parse,
    refs,
    translate,
    write,
)


@pytest.mark.parametrize(
    ("syntax", "text", "pieces"),
    [
        (OURS, "a ${V} b", ("a ", Ref("env", "V"), " b")),
        (OURS, "${env:V}${V:-d}", (Ref("env", "V"), Ref("env", "V", "d"))),
        (OURS, "${keyring:a.B}/${workspaceFolder}", (Ref("keyring", "a.B"), "/", Ref("place", "workspaceFolder"))),
        (OURS, "$${V} $$${V}", ("${V} $${V}",)),
        (BRACES, "${V:-}${W}", (Ref("env", "V", ""), Ref("env", "W"))),
        (BRACES, "$V ${env:V} ~", ("$V ${env:V} ~",)),
        (EDITOR, "${env:V}${input:id}", (Ref("env", "V"), Ref("input", "id"))),
        (EDITOR, "${userHome}${/}x", (Ref("place", "userHome"), Ref("place", "/"), "x")),
        (EDITOR, "${V}", ("${V}",)),
        (CURSOR, "${input:id}", ("${input:id}",)),
        (FILES, "${file:/a b}${env:V}", (Ref("file", "/a b"), Ref("env", "V"))),
        (DOLLARS, "$V-${W}-$1", (Ref("env", "V"), "-", Ref("env", "W"), "-$1")),
        (PERCENT, "%V%$W 50%", (Ref("env", "V"), Ref("env", "W"), " 50%")),
        (CURLY, "{env:V}{file:~/t}${V}", (Ref("env", "V"), Ref("file", "~/t"), "${V}")),
        (SECRETS, "${{ secrets.X }}${{secrets.a/Y}}", (Ref("secret", "X"), Ref("secret", "a/Y"))),
        (NONE, "${V} $V %V%", ("${V} $V %V%",)),
        (NONE, "", ()),
    ],
)
def test_every_way_to_write_a_variable_is_understood(syntax, text, pieces):
    assert parse(text, syntax) == pieces


@pytest.mark.parametrize(
    ("text", "target", "written"),
    [
        ("Bearer ${T}", EDITOR, "Bearer ${env:T}"),
        ("Bearer ${T}", CURLY, "Bearer {env:T}"),
        ("Bearer ${T}", DOLLARS, "Bearer ${T}"),
        ("${T:-d}", BRACES, "${T:-d}"),
        ("${secret:X}", SECRETS, "${{ secrets.X }}"),
        ("$${T}", EDITOR, "${T}"),
        ("$${T}", NONE, "${T}"),
    ],
)
def test_a_text_is_said_in_the_way_of_another(text, target, written):
    assert translate(text, OURS, target) == (written, ())


@pytest.mark.parametrize(
    ("text", "target", "written", "lost"),
    [
        ("${T:-d}", EDITOR, "${env:T}", [Ref("env", "T", "d")]),
        ("x${T}", NONE, "x${T}", [Ref("env", "T")]),
        ("${input:i}", BRACES, "${input:i}", [Ref("input", "i")]),
        ("${keyring:a.b} ${keyring:a.b}", BRACES, "${keyring:a.b} ${keyring:a.b}", [Ref("keyring", "a.b")]),
        ("${workspaceFolder}/x", DOLLARS, "${workspaceFolder}/x", [Ref("place", "workspaceFolder")]),
    ],
)
def test_what_cannot_be_said_is_named(text, target, written, lost):
    assert translate(text, OURS, target) == (written, tuple(lost))


def test_a_literal_that_would_be_filled_in_is_noticed():
    assert misread(("a ${T}",), BRACES)
    assert not misread(("a ${T}",), EDITOR)
    assert not misread((Ref("env", "T"),), BRACES)
    assert not misread(("${T}",), OURS)  # is kept from it


def test_references_of_a_text_are_found():
    assert refs("${A} ${keyring:x} $${B}") == (Ref("env", "A"), Ref("keyring", "x"))


@pytest.mark.parametrize("syntax", [BRACES, CURLY, CURSOR, DOLLARS, EDITOR, FILES, SECRETS, NONE], ids=str)
@given(text=st.text(st.sampled_from("${}:-AB/env%. input"), max_size=20))
def test_a_text_comes_back_from_our_own_way_as_it_was(syntax, text):
    ours = translate(text, syntax, OURS)
    assert ours.lost == () or "$$" in text
    assume(not ours.lost)
    back = translate(ours.text, OURS, syntax)
    assert parse(back.text, syntax) == parse(text, syntax)


@given(st.text(st.sampled_from("${}:-AB keyring"), max_size=20))
def test_a_literal_is_never_filled_in(text):
    assert expand(literal(text), {"A": "1", "B": "2", "AB": "3"}) == (text, ())
    assert write(parse(literal(text), OURS), NONE).text == text

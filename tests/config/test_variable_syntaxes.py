import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolway.config.variables import (
    BRACES_SYNTAX,
    CONTINUE_SYNTAX,
    CURSOR_SYNTAX,
    DOLLAR_SYNTAX,
    NO_SYNTAX,
    OPENCODE_SYNTAX,
    PERCENT_SYNTAX,
    TOOLWAY_SYNTAX,
    VSCODE_SYNTAX,
    WINDSURF_SYNTAX,
    VariableRef,
    escape_literal,
    expand_to_pieces,
    find_refs,
    is_ambiguous,
    parse_variables,
    render_variables,
    translate_variables,
)


@pytest.mark.parametrize(
    ("syntax", "text", "pieces"),
    [
        (TOOLWAY_SYNTAX, "a ${V} b", ("a ", VariableRef("env", "V"), " b")),
        (TOOLWAY_SYNTAX, "${env:V}${V:-d}", (VariableRef("env", "V"), VariableRef("env", "V", "d"))),
        (
            TOOLWAY_SYNTAX,
            "${keyring:a.B}/${workspaceFolder}",
            (VariableRef("keyring", "a.B"), "/", VariableRef("place", "workspaceFolder")),
        ),
        (TOOLWAY_SYNTAX, "$${V} $$${V}", ("${V} $${V}",)),
        (BRACES_SYNTAX, "${V:-}${W}", (VariableRef("env", "V", ""), VariableRef("env", "W"))),
        (BRACES_SYNTAX, "$V ${env:V} ~", ("$V ${env:V} ~",)),
        (VSCODE_SYNTAX, "${env:V}${input:id}", (VariableRef("env", "V"), VariableRef("input", "id"))),
        (VSCODE_SYNTAX, "${userHome}${/}x", (VariableRef("place", "userHome"), VariableRef("place", "/"), "x")),
        (VSCODE_SYNTAX, "${V}", ("${V}",)),
        (CURSOR_SYNTAX, "${input:id}", ("${input:id}",)),
        (WINDSURF_SYNTAX, "${file:/a b}${env:V}", (VariableRef("file", "/a b"), VariableRef("env", "V"))),
        (DOLLAR_SYNTAX, "$V-${W}-$1", (VariableRef("env", "V"), "-", VariableRef("env", "W"), "-$1")),
        (PERCENT_SYNTAX, "%V%$W 50%", (VariableRef("env", "V"), VariableRef("env", "W"), " 50%")),
        (OPENCODE_SYNTAX, "{env:V}{file:~/t}${V}", (VariableRef("env", "V"), VariableRef("file", "~/t"), "${V}")),
        (
            CONTINUE_SYNTAX,
            "${{ secrets.X }}${{secrets.a/Y}}",
            (VariableRef("secret", "X"), VariableRef("secret", "a/Y")),
        ),
        (NO_SYNTAX, "${V} $V %V%", ("${V} $V %V%",)),
        (NO_SYNTAX, "", ()),
    ],
)
def test_every_variable_syntax_is_parsed(syntax, text, pieces):
    assert parse_variables(text, syntax) == pieces


@pytest.mark.parametrize(
    ("text", "target", "written"),
    [
        ("Bearer ${T}", VSCODE_SYNTAX, "Bearer ${env:T}"),
        ("Bearer ${T}", OPENCODE_SYNTAX, "Bearer {env:T}"),
        ("Bearer ${T}", DOLLAR_SYNTAX, "Bearer ${T}"),
        ("${T:-d}", BRACES_SYNTAX, "${T:-d}"),
        ("${secret:X}", CONTINUE_SYNTAX, "${{ secrets.X }}"),
        ("$${T}", VSCODE_SYNTAX, "${T}"),
        ("$${T}", NO_SYNTAX, "${T}"),
    ],
)
def test_variables_are_translated_between_syntaxes(text, target, written):
    assert translate_variables(text, TOOLWAY_SYNTAX, target) == (written, ())


@pytest.mark.parametrize(
    ("text", "target", "written", "lost"),
    [
        ("${T:-d}", VSCODE_SYNTAX, "${env:T}", [VariableRef("env", "T", "d")]),
        ("x${T}", NO_SYNTAX, "x${T}", [VariableRef("env", "T")]),
        ("${input:i}", BRACES_SYNTAX, "${input:i}", [VariableRef("input", "i")]),
        (
            "${keyring:a.b} ${keyring:a.b}",
            BRACES_SYNTAX,
            "${keyring:a.b} ${keyring:a.b}",
            [VariableRef("keyring", "a.b")],
        ),
        ("${workspaceFolder}/x", DOLLAR_SYNTAX, "${workspaceFolder}/x", [VariableRef("place", "workspaceFolder")]),
    ],
)
def test_untranslatable_variable_is_reported(text, target, written, lost):
    assert translate_variables(text, TOOLWAY_SYNTAX, target) == (written, tuple(lost))


def test_ambiguous_literal_is_detected():
    assert is_ambiguous(("a ${T}",), BRACES_SYNTAX)
    assert not is_ambiguous(("a ${T}",), VSCODE_SYNTAX)
    assert not is_ambiguous((VariableRef("env", "T"),), BRACES_SYNTAX)
    assert not is_ambiguous(("${T}",), TOOLWAY_SYNTAX)  # is kept from it


def test_references_in_text_are_found():
    assert find_refs("${A} ${keyring:x} $${B}") == (VariableRef("env", "A"), VariableRef("keyring", "x"))


@pytest.mark.parametrize(
    "syntax",
    [
        BRACES_SYNTAX,
        OPENCODE_SYNTAX,
        CURSOR_SYNTAX,
        DOLLAR_SYNTAX,
        VSCODE_SYNTAX,
        WINDSURF_SYNTAX,
        CONTINUE_SYNTAX,
        NO_SYNTAX,
    ],
    ids=str,
)
@given(text=st.text(st.sampled_from("${}:-AB/env%. input"), max_size=20))
def test_round_trip_through_toolway_syntax_is_lossless(syntax, text):
    ours = translate_variables(text, syntax, TOOLWAY_SYNTAX)
    assert ours.unsupported == () or "$$" in text
    assume(not ours.unsupported)
    back = translate_variables(ours.text, TOOLWAY_SYNTAX, syntax)
    assert parse_variables(back.text, syntax) == parse_variables(text, syntax)


@given(st.text(st.sampled_from("${}:-AB keyring"), max_size=20))
def test_escaped_literal_is_never_expanded(text):
    assert "".join(map(str, expand_to_pieces(escape_literal(text), {"A": "1", "B": "2", "AB": "3"}))) == text
    assert render_variables(parse_variables(escape_literal(text), TOOLWAY_SYNTAX), NO_SYNTAX).text == text

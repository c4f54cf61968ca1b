"""The page of an error code at a terminal."""

import json

import pytest
from typer.testing import CliRunner

from toolway.cli.app import app
from toolway.cli.help.other_names import RENAMED_CODES


def toolway(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_code_is_explained_in_any_spelling():
    for spelling in ("E-STDIO-ENOENT", "e-stdio-enoent", "stdio-enoent"):
        text = toolway("explain", spelling).stdout
        assert text.startswith("# E-STDIO-ENOENT\n")
        assert "## How to fix it" in text


def test_all_codes_are_listed_with_meaning():
    codes = json.loads(toolway("explain", "--json").stdout)["codes"]
    assert len(codes) > 100
    assert {"code": "E-USAGE", "meaning": "The command line is invalid."} in codes


def test_unknown_code_suggests_nearest():
    result = toolway("explain", "E-STDIO-ENOENTT")
    assert "did you mean E-STDIO-ENOENT" in result.stderr
    assert result.exit_code == 1


def test_every_error_names_the_explain_command():
    assert "toolway explain E-USAGE" in toolway("nonsense").stderr


@pytest.mark.user_trial("20")
def test_unrelated_word_gets_no_suggestion():
    result = toolway("explain", "nosuch")
    assert "did you mean" not in result.stderr and "toolway explain" in result.stderr
    assert result.exit_code == 1


def test_code_from_before_the_first_release_names_the_new_one():
    for old, new in RENAMED_CODES.items():
        assert f"did you mean E-{new}?" in toolway("explain", old).stderr
        assert toolway("explain", new).exit_code == 0

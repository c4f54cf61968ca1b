"""The page of an error code at a terminal."""

import json

import pytest
from typer.testing import CliRunner

from toolway.cli.app import app


def toolway(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_a_code_is_explained_however_it_is_written():
    for spelling in ("E-STDIO-ENOENT", "e-stdio-enoent", "stdio-enoent"):
        text = toolway("explain", spelling).stdout
        assert text.startswith("# E-STDIO-ENOENT\n")
        assert "## How to fix it" in text


def test_all_codes_are_listed_with_what_they_mean():
    codes = json.loads(toolway("explain", "--json").stdout)["codes"]
    assert len(codes) > 100
    assert {"code": "E-USAGE", "meaning": "The command line is invalid."} in codes


def test_a_code_that_does_not_exist_is_answered_with_the_nearest():
    result = toolway("explain", "E-STDIO-ENOENTT")
    assert "did you mean E-STDIO-ENOENT" in result.stderr
    assert result.exit_code == 1


def test_every_error_says_how_to_have_it_explained():
    assert "toolway explain E-USAGE" in toolway("nonsense").stderr


@pytest.mark.user_trial("20")
def test_a_word_that_is_like_no_code_is_answered_with_none():
    result = toolway("explain", "nosuch")
    assert "did you mean" not in result.stderr and "toolway explain" in result.stderr
    assert result.exit_code == 1

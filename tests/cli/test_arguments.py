import io

import pytest

from toolway.cli.commands import tools
from toolway.cli.exit_codes import UsageError


def test_each_argument_operator_is_parsed(tmp_path):
    file = tmp_path / "f"
    file.write_text("from a file\n")
    words = ["a=1", "b:=2", 'c:={"x": [null]}', f"d@={file}", "e=", "f=x=y:=z"]
    assert tools.parse_arguments(words) == {
        "a": "1",
        "b": 2,
        "c": {"x": [None]},
        "d": "from a file\n",
        "e": "",
        "f": "x=y:=z",
    }


def test_one_json_object_holds_all_arguments():
    assert tools.parse_arguments(['{"a": 1}']) == {"a": 1}
    assert tools.parse_arguments([]) == {}


def test_dash_reads_stdin(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("piped"))
    assert tools.parse_arguments(["a@=-"]) == {"a": "piped"}


@pytest.mark.parametrize("words", [["a"], ["=1"], [":=1"], ["a:=x"], ["a@=/no/such/file"], ["a=1", "a=2"], ["{oops"]])
def test_invalid_argument_is_a_usage_error(words):
    with pytest.raises(UsageError) as caught:
        tools.parse_arguments(words)
    assert caught.value.code == "E-USAGE"

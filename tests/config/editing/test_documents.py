"""What an edit makes of a file that a person keeps, to be read."""

from textwrap import dedent

import pytest

from toolway.config.editing.document import ConfigDocument
from toolway.errors import ConfigError

JSON = """\
    {
      // my servers
      "mcpServers": {
        "a": {"command": "x"}, // first
        /* the second */
        "b": {
          "command": "y", // why
          "args": [
            "-v", // loud
          ]
        }
        // no more
      }
    }
    """
TOML = """\
    model = "m" # mine

    # about a
    [mcp_servers.a]
    command = "x" # why
    env = { A = "1", B = "2" }

    # about b
    [mcp_servers.b]
    url = "u"
    """
YAML = """\
    # mine
    extensions:
      # about a
      a:
        cmd: x # why
        args: [one, two]
      # about b
      b: {cmd: y}
    """


def document(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(dedent(text))
    return ConfigDocument(path)


def changed(found, *, without=(), put=()):
    """The lines that are gone, and those that are new."""
    found.remove(without) if without else found.set(*put)
    lines = found.to_edit().diff(0).splitlines()[2:]
    gone = [line[1:] for line in lines if line.startswith("-")]
    new = [line[1:] for line in lines if line.startswith("+")]
    return gone, new


def test_json_gets_a_member_behind_the_last_and_its_comment_stays_with_it(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    assert changed(found, put=(("mcpServers", "c"), {"command": "z"})) == (
        [],
        ["    },", '    "c": {', '      "command": "z"'],  # the bracket that was there closes it
    )


def test_json_loses_a_member_with_the_comment_on_its_line_alone(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    assert changed(found, without=("mcpServers", "a")) == (['    "a": {"command": "x"}, // first'], [])


def test_json_loses_its_last_member_and_the_comma_before_it(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    gone, new = changed(found, without=("mcpServers", "b"))
    assert new == ['    "a": {"command": "x"} // first']
    assert "    /* the second */" not in gone


def test_json_gets_an_item_among_comments(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    assert changed(found, put=(("mcpServers", "b", "args"), ["-v", "-q"])) == ([], ['        "-q",'])


def test_toml_gets_a_table_of_its_own(tmp_path):
    found = document(tmp_path, "f.toml", TOML)
    new = {"command": "z", "env": {"K": "v"}}
    assert changed(found, put=(("mcp_servers", "c"), new)) == (
        [],
        ["", "[mcp_servers.c]", 'command = "z"', "", "[mcp_servers.c.env]", 'K = "v"'],
    )


def test_toml_loses_a_table_and_keeps_the_comment_about_the_next(tmp_path):
    found = document(tmp_path, "f.toml", TOML)
    changed(found, without=("mcp_servers", "a"))
    assert found.text == dedent("""\
        model = "m" # mine

        # about a

        # about b
        [mcp_servers.b]
        url = "u"
        """)


def test_toml_changes_inside_of_an_inline_table(tmp_path):
    found = document(tmp_path, "f.toml", TOML)
    assert changed(found, put=(("mcp_servers", "a", "env"), {"B": "3", "C": "4"})) == (
        ['env = { A = "1", B = "2" }'],
        ['env = { B = "3", C = "4" }'],
    )


def test_a_yaml_file_is_read_and_never_edited(tmp_path):
    found = document(tmp_path, "f.yaml", YAML)
    assert found.key_lines(("extensions",)) == {"a": 4, "b": 8}
    with pytest.raises(ConfigError) as caught:
        found.set(("extensions", "b", "cmd"), "z")
    assert caught.value.code == "E-EDIT-SHAPE"
    assert found.text == dedent(YAML)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("f.json", '{\n"a": }', 2),
        ("f.toml", "a = 1\nb = \n", 2),
        ("f.yaml", "a: 1\nb: [\n", 3),
        ("f.yaml", "a: 1\na: 2\n", 2),
    ],
)
def test_a_file_that_is_not_understood_is_named_with_its_line(name, text, line, tmp_path):
    with pytest.raises(ConfigError) as caught:
        document(tmp_path, name, text)
    assert (caught.value.code, caught.value.line) == ("E-CONFIG-SYNTAX", line)
    assert caught.value.file.endswith(name)

"""What an edit makes of a file that a user keeps, to be read."""

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


def test_json_member_is_added_after_last_and_its_comment(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    assert changed(found, put=(("mcpServers", "c"), {"command": "z"})) == (
        [],
        ["    },", '    "c": {', '      "command": "z"'],  # the bracket that was there closes it
    )


def test_json_member_is_removed_with_its_line_comment(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    assert changed(found, without=("mcpServers", "a")) == (['    "a": {"command": "x"}, // first'], [])


def test_last_json_member_is_removed_with_its_comma(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    gone, new = changed(found, without=("mcpServers", "b"))
    assert new == ['    "a": {"command": "x"} // first']
    assert "    /* the second */" not in gone


def test_json_item_is_added_among_comments(tmp_path):
    found = document(tmp_path, "f.json", JSON)
    assert changed(found, put=(("mcpServers", "b", "args"), ["-v", "-q"])) == ([], ['        "-q",'])


def test_toml_gets_a_new_table(tmp_path):
    found = document(tmp_path, "f.toml", TOML)
    new = {"command": "z", "env": {"K": "v"}}
    assert changed(found, put=(("mcp_servers", "c"), new)) == (
        [],
        ["", "[mcp_servers.c]", 'command = "z"', "", "[mcp_servers.c.env]", 'K = "v"'],
    )


def test_toml_table_removal_keeps_comment_of_next_table(tmp_path):
    found = document(tmp_path, "f.toml", TOML)
    changed(found, without=("mcp_servers", "a"))
    assert found.text == dedent("""\
        model = "m" # mine

        # about a

        # about b
        [mcp_servers.b]
        url = "u"
        """)


def test_toml_inline_table_is_edited(tmp_path):
    found = document(tmp_path, "f.toml", TOML)
    assert changed(found, put=(("mcp_servers", "a", "env"), {"B": "3", "C": "4"})) == (
        ['env = { A = "1", B = "2" }'],
        ['env = { B = "3", C = "4" }'],
    )


def test_yaml_file_is_never_edited(tmp_path):
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
def test_syntax_error_has_file_and_line(name, text, line, tmp_path):
    with pytest.raises(ConfigError) as caught:
        document(tmp_path, name, text)
    assert (caught.value.code, caught.value.line) == ("E-CONFIG-SYNTAX", line)
    assert caught.value.file.endswith(name)

import pytest

from toolway.config.find import default_file
from toolway.errors import ConfigError


def test_the_variable_goes_before_everything(tmp_path):
    (tmp_path / "mcp.json").touch()
    assert default_file({"TOOLWAY_CONFIG": "/x/y.json"}, tmp_path).as_posix() == "/x/y.json"


def test_the_nearest_file_is_found_first(tmp_path):
    home = tmp_path / "home"
    user = home / ".config" / "toolway" / "mcp.json"
    user.parent.mkdir(parents=True)
    user.touch()
    here = tmp_path / "here"
    here.mkdir()
    variables = {"HOME": str(home)}
    assert default_file(variables, here) == user
    (here / ".mcp.json").touch()
    assert default_file(variables, here) == here / ".mcp.json"
    (here / "mcp.json").touch()
    assert default_file(variables, here) == here / "mcp.json"


def test_the_config_home_of_the_desktop_is_honoured(tmp_path):
    file = tmp_path / "xdg" / "toolway" / "mcp.json"
    file.parent.mkdir(parents=True)
    file.touch()
    assert default_file({"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": "/nowhere"}, tmp_path) == file


def test_where_nothing_is_found_the_error_says_where_and_what_to_write(tmp_path):
    with pytest.raises(ConfigError) as caught:
        default_file({"HOME": str(tmp_path)}, tmp_path)
    assert caught.value.code == "E-CONFIG-NONE"
    assert str(tmp_path / ".mcp.json") in caught.value.evidence
    assert "mcpServers" in caught.value.fix

"""Keys of ours that were renamed: an old key has no effect, and the message names the new one."""

import pytest

from toolway.config.field_reader import OLD_KEYS
from toolway.config.loader import parse_config
from toolway.config.schema import Limits, Server
from toolway.config.server_entry import KNOWN_KEYS, parse_entry_with_issues
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError

OF_ENTRIES = {old: new for old, new in OLD_KEYS.items() if not old.startswith("toolway.")}
OF_OUR_BLOCK = {old.removeprefix("toolway."): new for old, new in OLD_KEYS.items() if old.startswith("toolway.")}


def nested(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize(("old", "new"), OF_ENTRIES.items())
def test_old_entry_key_is_ignored_with_a_warning(old, new):
    server, issues = parse_entry_with_issues({"command": "x", **nested(old.replace("*", "t"), 7)}, {})
    assert (server.limits, server.idempotent, server.share_connection) == (Limits(), False, False)
    assert [(issue.severity, issue.hint) for issue in issues] == [("warning", f"it was renamed: use {new!r}")]


@pytest.mark.parametrize(("old", "new"), OF_OUR_BLOCK.items())
def test_old_toolway_key_is_an_error_naming_the_new_key(old, new):
    with pytest.raises(ConfigError, match=r"unknown key (in )?toolway") as caught:
        parse_gateway(nested(old, True), {})
    assert caught.value.hint == f"it was renamed: use {new!r}"
    with pytest.raises(ConfigError):
        parse_config(f'{{"mcpServers": {{}}, "toolway": {{"{old.split(".")[0]}": {{"commands": true}}}}}}')


def test_new_keys_are_known_and_old_keys_are_not():
    top = {old: new for old, new in OF_ENTRIES.items() if "." not in old}
    assert set(top.values()) <= set(KNOWN_KEYS)
    assert not set(top) & set(KNOWN_KEYS)
    assert parse_entry_with_issues({"command": "x", "limits": {"maxTools": 5}}, {})[0] == Server(
        "x", limits=Limits(max_tools=5)
    )

"""Constants of the protocol, compared with the SDK."""

from __future__ import annotations

import mcp.shared.inbound
import mcp.shared.subscriptions
import mcp_types
import mcp_types.jsonrpc
import mcp_types.version
import pytest

from toolway.protocol import constants

SDK = (mcp_types, mcp_types.jsonrpc, mcp_types.version, mcp.shared.inbound, mcp.shared.subscriptions)
NAMES = [name for name in vars(constants) if name.isupper()]


@pytest.mark.parametrize("name", NAMES)
def test_constant_matches_the_sdk(name: str) -> None:
    expected = next(getattr(module, name) for module in SDK if hasattr(module, name))
    assert getattr(constants, name) == expected


def test_no_error_code_or_meta_key_is_missing() -> None:
    assert {name for name in vars(mcp_types) if name.endswith("_META_KEY")} <= set(NAMES)
    codes = {name for name, value in vars(mcp_types.jsonrpc).items() if name.isupper() and type(value) is int}
    # Not sent by Toolway: its own conditions have other codes.
    assert codes - set(NAMES) == {"CONNECTION_CLOSED", "REQUEST_TIMEOUT"}

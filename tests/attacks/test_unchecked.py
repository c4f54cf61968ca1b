"""Send arguments that are not checked against the schema of their tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hub.test_arguments import Files
from toolway import Hub, InvalidArguments
from toolway.protocol.json_schema import MAX_VALIDATION_WORK, schema_cost

pytestmark = pytest.mark.anyio

PAY: dict[str, Any] = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 10}}}


@pytest.mark.attack("A2-W2")
@pytest.mark.parametrize("plans", ["on", "off"])
@pytest.mark.parametrize("padding", ["list", "names", "nested"])
async def test_wrong_argument_behind_padding_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: str, padding: str
) -> None:
    monkeypatch.setenv("TOOLWAY_PLANS", plans)
    files = Files(tmp_path)
    files.write(pay=PAY)
    count = MAX_VALIDATION_WORK // schema_cost(PAY)
    pads: dict[str, dict[str, Any]] = {
        "list": {"pad": [0] * count},
        "names": {f"p{number}": 0 for number in range(count)},
        "nested": {"pad": [[0] * 1000] * (count // 1000)},
    }
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        assert not (await hub.call_tool("s.pay", {"amount": 1})).is_error
        for amount in ("all of it", 11, 1):
            with pytest.raises(InvalidArguments) as caught:
                await hub.call_tool("s.pay", {**pads[padding], "amount": amount})
            assert caught.value.executed == "no"
            assert "too many values to be checked" in caught.value.detail and f"at most {count}" in caught.value.detail
    assert files.received == [{"amount": 1}]


@pytest.mark.attack("A2-W3")
@pytest.mark.parametrize("plans", ["on", "off"])
async def test_unsupported_pattern_does_not_turn_off_other_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: str
) -> None:
    monkeypatch.setenv("TOOLWAY_PLANS", plans)
    files = Files(tmp_path)
    properties = {**PAY["properties"], "note": {"type": "string", "pattern": "^(?=.*x)"}}
    files.write(pay={**PAY, "properties": properties})
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.pay", {"amount": 1, "note": "no such letter"})
        (problem,) = hub.status()["s"].problems
        assert problem == "patterns of tool 'pay' are not checked, because they need backtracking: '^(?=.*x)'"
        with pytest.raises(InvalidArguments):
            await hub.call_tool("s.pay", {"amount": 11, "note": "x"})
    assert len(files.received) == 1

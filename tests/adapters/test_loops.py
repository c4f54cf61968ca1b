"""Every framework runs its own agent loop with tools of a hub: six scenarios each, over the real SDKs.

The frameworks are in their own environments: `make clients ARGS=adapters`. Elsewhere these tests are skipped.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.adapters.loops import LOOPS, VARIANTS
from tests.adapters.scenarios import SCENARIOS, Loop, check_cancelled, check_ok, check_parallel

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]


def missing_module(names: tuple[str, ...]) -> str:
    """Return the first module that is not installed, or ""."""
    for name in names:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return name
    return ""


CASES = [
    pytest.param(name, scenario, id=f"{name}-{scenario.__name__.removeprefix('check_')}")
    for name in LOOPS
    for scenario in (SCENARIOS if name not in VARIANTS else [check_ok, check_parallel])
]


@pytest.mark.parametrize(("name", "scenario"), CASES)
async def test_framework_loop_passes_scenario(
    name: str, scenario: Callable[[Loop, Path], Awaitable[None]], tmp_path: Path
) -> None:
    loop, modules = LOOPS[name]
    missing = missing_module(modules)
    if missing:
        pytest.skip(f"{missing} is not installed: make clients ARGS=adapters")
    if name == "openai-chat-stream" and int(version("openai").partition(".")[0]) < 3:
        pytest.skip("the helper for streams of openai 2 accepts strict tools only")
    if (name, scenario) == ("smolagents", check_cancelled):
        pytest.skip("smolagents runs tools in threads and cannot cancel a call")
    await scenario(loop, tmp_path / "effects")

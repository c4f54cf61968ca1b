"""A warm gateway answers each request like a gateway that has nothing cached, and a broken build is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broken_builds import BUILDS
from tests.warm.processes import compare_processes
from tests.warm.run import compare

pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-F1")]

SEQUENCES = 300  # of each seed; `make attacks ARGS=warm` compares 200,000
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
async def test_warm_gateway_answers_like_a_cold_one(tmp_path: Path, seed: int) -> None:
    result = await compare(seed, SEQUENCES, tmp_path)
    assert result.differences == [], "\n\n".join(map(str, result.differences))
    assert result.requests > 2 * SEQUENCES
    assert {200, 400, 401, 403, 404} <= result.statuses.keys(), "it must compare more than refusals"


@pytest.mark.parametrize("build", [name for name in BUILDS if name.startswith("keeps_")])
async def test_cache_that_decides_rights_is_noticed(
    tmp_path: Path, build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BUILDS[build](monkeypatch.setattr)
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        if (await compare(seed, SEQUENCES, folder, most=1)).differences:
            return
    pytest.fail(f"no difference in {len(SEEDS)} x {SEQUENCES} sequences")


async def test_warm_process_answers_like_a_new_one(tmp_path: Path) -> None:
    differences = await compare_processes(1, 3, tmp_path)
    assert differences == [], "\n\n".join(map(str, differences))

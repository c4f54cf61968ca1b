"""The short form: a few servers among a few nodes, which have little to do while nothing happens."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.growth import page, saved_results
from tests.cluster.growth.engines import engines
from tests.cluster.growth.measurement import Figures, measure
from tests.faults.cluster.engines import missing_engines


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.skipif(missing_engines() is not None, reason=str(missing_engines()))
async def test_idle_nodes_periodic_work_stays_constant() -> None:
    """Among a few; how it continues is measured by `make cluster ARGS=growth`."""
    async with engines() as running:
        found = await measure(running, 150, 5, 4.0)
    assert page.broken([found]) == []
    assert found.statements > 1.5 and 0.1 < found.renewals < 0.6
    assert 30 <= found.most_held < 150
    assert found.lost_seconds > 3  # a lease lasts; else no node was killed
    assert f"| 150 | 5 | {found.memory_mb:.1f} |" in page.tables([found])


def test_growing_figures_are_found() -> None:
    zero = Figures(*(0.0 for _ in Figures.__dataclass_fields__))  # type: ignore[arg-type]
    fine = replace(zero, servers=50_000, replicas=500, statements=2.3, record_rows=12_000.0)
    assert page.broken([fine]) == []
    bad = replace(fine, statements=9.0, messages_heard=4.0, record_rows=50_000.0 * 500)
    assert len(page.broken([bad])) == 3


def test_newest_measurement_of_a_size_is_kept(tmp_path: Path) -> None:
    zero = Figures(*(0.0 for _ in Figures.__dataclass_fields__))  # type: ignore[arg-type]
    file = tmp_path / "build" / "kept.jsonl"
    for servers, replicas, memory in ((1000, 50, 1.0), (1000, 3, 2.0), (1000, 50, 3.0)):
        saved_results.keep(
            replace(zero, servers=servers, replicas=replicas, memory_mb=memory, lost_seconds=math.nan), file
        )
    assert [(each.replicas, each.memory_mb) for each in saved_results.all(file)] == [(3, 2.0), (50, 3.0)]

"""The short form: a few servers among three nodes and among eight. Nobody has more to do where there are more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cluster.growth import page
from tests.cluster.growth.cell import Figures, measure
from tests.cluster.growth.engines import engines
from tests.faults.cluster.engines import missing_engines


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.skipif(missing_engines() is not None, reason=str(missing_engines()))
async def test_what_a_node_does_again_and_again_does_not_grow() -> None:
    async with engines() as running:
        found = [await measure(running, servers, nodes, 5.0) for servers, nodes in ((50, 3), (300, 8))]
    assert page.broken(found) == []
    few, many = found
    assert few.servers == 50 and many.most_held < 150
    assert many.statements < few.statements + 1.0
    assert 0.1 < many.renewals < 0.6
    assert all(each.lost_seconds > 3 for each in found)  # a lease lasts; else nobody was killed
    assert f"| 300 | 8 | {many.memory_mb:.1f} |" in page.tables(found)


def test_figures_that_grow_are_found() -> None:
    zero = Figures(*(0.0 for _ in Figures.__dataclass_fields__))  # type: ignore[arg-type]
    fine = replace(zero, servers=50_000, replicas=500, statements=2.3, record_rows=12_000.0)
    assert page.broken([fine]) == []
    bad = replace(fine, statements=9.0, messages_heard=4.0, record_rows=50_000.0 * 500)
    assert len(page.broken([bad])) == 3

"""Where places may be: labels, room, several instances, and what is wanted back."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.db_lab import PLACES, Lab, lab_of
from tests.timing import within
from toolway.cluster.db.instances import DesiredInstances, ServerInstance

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("url", ["postgresql"], indirect=True)]


def _owner(lab: Lab, server: str, instance: int = 0) -> str | None:
    held = lab.ownership_log.owners.get(ServerInstance("acme", server, instance))
    return held.node if held is not None else None


async def test_server_runs_only_on_nodes_with_its_labels(engine: AsyncEngine) -> None:
    async with lab_of(engine) as lab:
        lab.start("a", labels=["eu"])
        lab.start("b", labels=["eu", "gpu"])
        await lab.declare(
            {f"gpu-{n}": DesiredInstances(labels=("gpu",)) for n in range(6)}
            | {"moon": DesiredInstances(labels=("moon",))}
        )
        await lab.until(lambda: all(_owner(lab, f"gpu-{n}") == "b" for n in range(6)))
        lab.start("c", labels=["gpu"])
        await lab.until(lambda: {_owner(lab, f"gpu-{n}") for n in range(6)} == {"b", "c"})  # they share them
        assert _owner(lab, "moon") is None
        await lab.declare({"gpu-0": DesiredInstances(labels=("eu", "gpu"))})
        await lab.until(lambda: _owner(lab, "gpu-0") == "b")  # the only one that has both
        await lab.stop("b")
        await lab.until(lambda: all(_owner(lab, f"gpu-{n}") == "c" for n in range(1, 6)))
        assert _owner(lab, "gpu-0") is None


async def test_instances_of_a_server_run_on_different_nodes(engine: AsyncEngine) -> None:
    async with lab_of(engine, "a", "b", "c") as lab:
        await lab.declare({f"many-{n}": DesiredInstances(count=3) for n in range(4)})
        apart = [{"a", "b", "c"}] * 4
        await lab.until(lambda: [{_owner(lab, f"many-{n}", i) for i in range(3)} for n in range(4)] == apart)
        await lab.stop("c")
        await lab.until(lambda: all(_owner(lab, f"many-{n}", i) in ("a", "b") for n in range(4) for i in range(3)))
        await lab.declare({f"many-{n}": DesiredInstances(count=1) for n in range(4)})
        await lab.until(lambda: all(_owner(lab, f"many-{n}", i) is None for n in range(4) for i in (1, 2)))
        await lab.until(lambda: all(_owner(lab, f"many-{n}") is not None for n in range(4)))  # one may be on its way


async def test_full_node_leaves_the_rest_to_others_without_thrashing(engine: AsyncEngine) -> None:
    async with lab_of(engine) as lab:
        lab.start("small", capacity=3)
        await lab.until(lambda: lab.ownership_log.shares() == {"small": 3})
        await lab.declare({f"watched-{n}": DesiredInstances(cost=0) for n in range(5)})
        await lab.until(
            lambda: lab.ownership_log.shares() == {"small": 8}
        )  # a server without a program takes up no room
        lab.start("large", capacity=12)
        await lab.until(lambda: len(lab.ownership_log.owners) == len(PLACES) + 5, 30)
        await lab.until(lambda: len(lab.ownership_log.owners) == len(PLACES) + 5 and lab.quiet() > 5, 40)
        before = dict(lab.ownership_log.owners)
        programs = [held.node for place, held in before.items() if not place.server.startswith("watched")]
        assert len(programs) == len(PLACES) and programs.count("small") <= 3 and programs.count("large") <= 12


async def test_removed_server_is_released_and_its_end_published(engine: AsyncEngine) -> None:
    async with lab_of(engine, "a") as lab:
        await lab.until(lambda: lab.all_owned("a"))
        place = PLACES[0]
        held = lab.ownership_log.owners[place]
        await lab.declare({place.server: DesiredInstances(count=0)})
        took = await lab.until(lambda: place not in lab.ownership_log.owners)
        assert took < within(2.5)
        await lab.until(lambda: (held, False) in lab.told)
        await lab.declare({place.server: DesiredInstances()})
        await lab.until(lambda: place in lab.ownership_log.owners)
        assert lab.ownership_log.owners[place].fence > held.fence

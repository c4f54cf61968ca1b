"""A node that lacks a part of its cluster does not join: calls through it would escape the part's rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.node.test_configuration import FAKE, gateway
from toolway.cli.exit_codes import ExitCode

pytestmark = pytest.mark.anyio

PART = """
from toolway.part_api.part import Part

class Lunch(Part):
    name = "lunch"
    setting_keys = ("lunch",)

    def parse_settings(self, block, variables):
        return str(block["lunch"])
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Folder of an installed distribution with a part."""
    info = tmp_path / "site" / "lunch-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "lunch_part.py").write_text(PART)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lunch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[toolway.parts]\nlunch = lunch_part:Lunch\n")
    return tmp_path / "site"


async def test_node_joins_only_with_the_parts_of_the_others(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as installed:
        installed.setenv("PYTHONPATH", str(site))
        async with gateway(tmp_path, "one", {"a": FAKE}, lunch="soup") as one:
            await one.announced()
            async with gateway(tmp_path, "two", {"a": FAKE}) as two:
                await two.announced()
            installed.delenv("PYTHONPATH")
            async with gateway(tmp_path, "three", {"a": FAKE}) as three:
                assert await three.ended() == ExitCode.CONFIG
                assert three.process.stdout is not None
                error = json.loads(await three.process.stdout.read())["error"]
                assert (error["code"], error["message"]) == ("E-CLUSTER-PARTS", "this node lacks a part: lunch")
                assert "node one-" in error["detail"]

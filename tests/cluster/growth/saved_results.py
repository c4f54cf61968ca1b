"""The figures of pairs that were measured, so a grid can be measured in parts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.cluster.growth.measurement import ROOT, Figures

FILE: Final = ROOT / "build" / "cluster-growth.jsonl"


def keep(figures: Figures, file: Path = FILE) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(asdict(figures)) + "\n")


def all(file: Path = FILE) -> list[Figures]:
    """The newest of each pair, by replicas and servers."""
    found = [Figures(**json.loads(line)) for line in file.read_text().splitlines()]
    newest = {(each.replicas, each.servers): each for each in found}
    return [newest[pair] for pair in sorted(newest)]

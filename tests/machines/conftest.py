"""How long the machines run: `ci` on every change, the same run each time; `long` (TOOLWAY_LONG=1) before a release.

TOOLWAY_EXAMPLES is the number of examples of `ci`, 500 unless it is set.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# Explaining a failure traces every line; shrinking it says enough.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
EXAMPLES = int(os.environ.get("TOOLWAY_EXAMPLES", "500"))
settings.register_profile(
    "ci", max_examples=EXAMPLES, stateful_step_count=50, deadline=None, derandomize=True, phases=PHASES
)
settings.register_profile(
    "long", max_examples=20_000, stateful_step_count=100, deadline=None, print_blob=True, phases=PHASES
)

LONG = bool(os.environ.get("TOOLWAY_LONG"))
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _profile() -> None:
    settings.load_profile("long" if LONG else "ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(0 if LONG else 600))  # a failure takes time to shrink

"""The table of broken setups: the doctor names the cause in its first line, and a fix that works. All run at once."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.doctor import commands_rows, files_rows, http_rows, starts_rows, tools_rows
from tests.doctor.doctor_lab import Lab
from tests.doctor.rows import ROWS, Row
from tests.orphans import no_other_orphans

MODULES = (commands_rows, starts_rows, files_rows, http_rows, tools_rows)
AT_ONCE = 8
LIMIT = 50.0  # seconds for one row
#: What users meet most often; none of these may be lost.
USUAL = (
    *("missing command", "wrong PATH", "nvm-only node", "unset variable", "token expired", "port taken"),
    *("exit 3 with a message on stderr", "stdout banner", "slow download", "silent server", "wrong root key"),
    *("wrong type spelling", "BOM", "JSONC", "duplicate entry", "bad schema", "name over 64"),
    *("two servers with one name", "TLS failure", "redirect", "401", "HTML instead of JSON", "legacy-only", "SSE-only"),
    "orphan left over",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What went wrong with each row; empty where it went well."""
    folder = tmp_path_factory.mktemp("table")
    # The doctor runs in this process, which has its own folders.
    with no_other_orphans(), pytest.MonkeyPatch.context() as ours:
        for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            ours.setenv(name, str(folder / name.lower()))
        return asyncio.run(_run_all(folder))


async def _run_all(folder: Path) -> dict[str, str]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, row: Row) -> str:
        async with gate:
            try:
                async with asyncio.timeout(LIMIT):
                    await row(Lab(folder / str(number)))
            except Exception:
                return traceback.format_exc()
        return ""

    numbers = {name: number for number, name in enumerate(ROWS)}
    alone = "orphan left over"  # or the doctors of the other rows would find it too
    done = await asyncio.gather(*(one(numbers[name], row) for name, row in ROWS.items() if name != alone))
    results = dict(zip([name for name in ROWS if name != alone], done, strict=True))
    return {**results, alone: await one(numbers[alone], ROWS[alone])}


@pytest.mark.parametrize("name", ROWS)
def test_doctor_names_the_cause_and_a_working_fix(name: str, results: Mapping[str, str]) -> None:
    if results[name]:
        pytest.fail(results[name], pytrace=False)


def test_usual_setups_are_in_the_table() -> None:
    assert set(USUAL) <= ROWS.keys()
    assert len(USUAL) == 25

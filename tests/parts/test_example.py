"""The example of a part: installed into a fresh environment as its own distribution, and used as a program."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.load_clients import Connection
from tests.gateway.program import start, until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment in which Toolway and the example are installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    found = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "toolway.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    (site / "source.pth").write_text(f"{ROOT / 'src'}\n")
    example = shutil.copytree(ROOT / "examples/part", folder / "example")
    words: list[str | Path] = [
        ROOT / ".uv/bin/uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        found,
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*words, "--no-build-isolation", example], check=True, timeout=120)
    return found


@pytest.fixture
def quiet_now() -> dict[str, Any]:
    hour = int(time.time() // 3600) % 24
    return {"from": (hour - 1) % 24, "to": (hour + 3) % 24, "except": ["fake.add"]}


@pytest.fixture
def program_of_fake() -> dict[str, Any]:
    return {"fake": {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}}


async def test_installed_example_part_works(
    python: Path, tmp_path: Path, quiet_now: dict[str, Any], program_of_fake: dict[str, Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(sys, "executable", str(python))
    alerts = tmp_path / "alerts"
    run = await start(tmp_path, program_of_fake, quietHours=quiet_now, alerts={"folder": str(alerts)})

    def toolway(*words: str) -> str:
        environ = {"PATH": "", "HOME": str(tmp_path), "TOOLWAY_STATE": str(tmp_path / "state")}
        done = subprocess.run(
            [python, "-m", "toolway.cli", *words, "-c", str(run.file)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    async def metrics() -> str:
        connection = await Connection.to(run.port)
        try:
            fields = {"authorization": f"Bearer {run.token}"}
            return (await connection.request("GET", "/metrics", fields, b"")).body.decode()
        finally:
            connection.close()

    try:
        await run.announced()
        await run.until_ready("fake")
        refused = await asyncio.to_thread(toolway, "call", "fake.echo", "text=x")
        assert "E-QUIET-HOURS" in refused and "fake.echo may not be called now" in refused
        assert "3" in await asyncio.to_thread(toolway, "call", "fake.add", "a=1", "b=2")
        _, answer = await run.request("POST", "/admin/call", {"server": "fake", "tool": "echo", "arguments": {}})
        assert "E-QUIET-HOURS" in json.dumps(answer)
        assert await run.get("/admin/quiet-hours") == (200, {"quiet": True, "rejected": {"fake.echo": 2}})
        assert "/admin/quiet-hours" in json.dumps((await run.get("/admin/openapi.json"))[1])
        assert "fake.echo: rejected 2 times" in await asyncio.to_thread(toolway, "quiet")
        shown = await metrics()
        assert "toolway_quiet_hours_now 1.0" in shown and 'toolway_quiet_hours_rejected{tool="fake.echo"} 2.0' in shown
        await until(lambda: list(alerts.glob("*quiet-hours*")))
        found = await asyncio.to_thread(toolway, "doctor")
        assert "toolway-quiet-hours 0.1.0" in found and "it runs in the gateway, and sees every call" in found
        assert f"calls are rejected from {quiet_now['from']} to" in found
        run.write(program_of_fake, quietHour=quiet_now)
        assert "unknown key toolway.quietHour" in await asyncio.to_thread(toolway, "config", "validate")
    finally:
        await run.stop()

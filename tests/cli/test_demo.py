"""`toolway ui --demo`: a living example with no configuration, and nothing is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from urllib.request import Request, urlopen


def ask(url: str, **headers: str):
    with urlopen(Request(url, headers=headers), timeout=10) as response:
        return json.load(response)


def test_demo_runs_without_config_and_leaves_no_files(tmp_path):
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "TOOLWAY_STATE", "TOOLWAY_CONFIG"):
        env.pop(name, None)
    command = [sys.executable, "-m", "toolway.cli", "ui", "--demo", "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path) as demo:
        assert demo.stdout is not None
        address, code = json.loads("".join(iter(demo.stdout.readline, "}\n")) + "}")["url"].split("/dashboard/#code=")
        request = Request(f"{address}/dashboard/session", method="POST", headers={"X-Toolway-Code": code})
        with urlopen(request, timeout=10) as response:
            page, cookie = json.load(response)["page"], response.headers["Set-Cookie"].partition(";")[0]
        session = {"Cookie": cookie, "X-Toolway-Page": page}
        end = time.monotonic() + 60
        overview = ask(f"{address}/admin/overview", **session)
        while time.monotonic() < end and (_states(overview)["crm"] != "down" or overview["minutes"]["calls"] <= 5):
            time.sleep(0.5)
            overview = ask(f"{address}/admin/overview", **session)
        states = _states(overview)
        assert states["crm"] == "down" and list(states.values()).count("ready") >= 4, states
        assert overview["minutes"]["calls"] > 5
        assert len(ask(f"{address}/admin/config", **session)["versions"]) == 2
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 0
    left = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and "cache" not in path.parts and ".cache" not in path.parts
    ]
    assert left == []


def _states(overview) -> dict[str, str]:
    return {server["server"]: server["state"] for server in overview["servers"]}

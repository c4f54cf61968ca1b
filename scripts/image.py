"""Build the image of deploy/Dockerfile with buildah and run it with podman and crun, as root and without a daemon.

    python scripts/image.py [--stand-in] [--store FOLDER] [OPTION OF buildah bud …]

The container has the options of deploy/compose.single.yaml. It runs in a network namespace that has only the loopback
device, plus an HTTP server. `--stand-in` makes the base image from Debian packages with mmdebstrap, where no registry
can be reached: its Python is Debian's, so the size and the Python of the real image differ. Options that follow go to
buildah, such as `--volume=/etc/pip.conf:/etc/pip.conf:ro`.

Images and containers are stored below `--store`, and mounts are made in namespaces of this script. Without buildah,
podman and crun it says so and ends with exit code 0. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # reads the compose file only

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PROBE = ROOT / "scripts" / "image_probe.py"
PROGRAMS = ("buildah", "podman", "crun", "unshare")
IMAGE = "localhost/toolway:latest"
SUITE = "trixie"  # the Debian whose Python has the version of the base image
URL = "http://127.0.0.1:8765"
STATE = "/var/lib/toolway"

# /usr/local has its own pip in the base image, which the Dockerfile removes. Debian's pip is not a part of it.
PREPARE_STAND_IN = """
ln -s /usr/bin/python3 /usr/local/bin/python
rm /usr/lib/python3*/EXTERNALLY-MANAGED
wheel=$(ls /usr/share/python-wheels/pip-*.whl)
PYTHONPATH=$wheel python -m pip install --quiet --no-index --root-user-action=ignore "$wheel"
"""

# Paths that the image may have in addition to its base's paths: our files, our user, and bytecode of the base's Python.
OURS = re.compile(
    r"/(opt(/toolway(/.*)?)?|home(/toolway(/.*)?)?|var(/lib(/toolway)?|/log(/(faillog|lastlog))?)?"
    r"|etc(/(passwd|shadow|group|gshadow|subuid|subgid)-?|/\.pwd\.lock)?|run|tmp|usr(/.*/__pycache__(/.*)?)?"
    r"|usr/local(/bin|/lib(/python[^/]+(/(site|dist)-packages)?)?)?)"  # changed, because pip was removed
)

failures: list[str] = []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand-in", action="store_true", help="make the base image from Debian packages")
    parser.add_argument("--store", type=Path, default=ROOT / "build" / "image", help="folder of images and containers")
    parser.add_argument("--stage", choices=["build", "run"], help=argparse.SUPPRESS)  # inside the namespaces
    options, more = parser.parse_known_args()
    programs = (*PROGRAMS, "mmdebstrap") if options.stand_in else PROGRAMS
    if missing := [name for name in programs if shutil.which(name) is None]:
        print(f"skipped, no image was built: {', '.join(missing)} not found (Debian packages of the same name)")
        return 0
    if os.geteuid() != 0:
        print("skipped, no image was built: only root may make the namespaces that this script uses")
        return 0
    engine = Engine(options.store.resolve())
    if options.stage == "build":
        build(engine, options.stand_in, more)
    elif options.stage == "run":
        run(engine, more)
    else:
        again = (sys.executable, __file__, *sys.argv[1:])
        private = ("unshare", "--mount", "--propagation", "private")
        for stage, namespaces in (("build", ()), ("run", ("--net", "--pid", "--fork", "--mount-proc", "--cgroup"))):
            done = subprocess.run([*private, *namespaces, *again, "--stage", stage], check=False)
            if done.returncode != 0:
                return done.returncode
    print("\n".join(f"FAILED: {each}" for each in failures), end="\n" if failures else "")
    return 1 if failures else 0


class Engine:
    """Storage of images and containers in one folder, and the programs that use it."""

    def __init__(self, store: Path) -> None:
        self.store = store
        store.mkdir(parents=True, exist_ok=True)
        # Neither overlayfs nor a FUSE device is needed to copy whole folders.
        self._where = ["--root", f"{store}/graph", "--runroot", f"{store}/run", "--storage-driver", "vfs"]

    def buildah(self, *words: str, show: bool = False) -> str:
        return _output(["buildah", *self._where, *words], show)

    def podman(self, *words: str, fails: bool = False) -> str:
        more = ["--tmpdir", f"{self.store}/tmp", "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
        return _output(["podman", *self._where, *more, "--runtime", "crun", *words], fails=fails)


def _output(words: list[str], show: bool = False, fails: bool = False) -> str:
    """Return what a program prints. With `show` it is printed instead; with `fails` the program may fail."""
    done = subprocess.run(
        words, stdout=None if show else subprocess.PIPE, stderr=None if show else subprocess.PIPE, text=True
    )
    if done.returncode != 0 and not fails:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{(done.stderr or '')[-3000:]}")
    return (done.stdout or "").strip()


def check(what: str, holds: bool, found: object = "") -> None:
    """Print one line about a check and note if it does not hold."""
    print(f"{'ok' if holds else 'FAILED'}  {what}{f': {found}' if found != '' else ''}", flush=True)
    if not holds:
        failures.append(what)


def base_image() -> str:
    name = re.findall(r"^FROM (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)[-1]
    return f"docker.io/library/{name}"


def build(engine: Engine, stand_in: bool, more: list[str]) -> None:
    if stand_in and not engine.buildah("images", "--quiet", "--filter", f"reference={base_image()}"):
        make_base(engine)
    # The format of OCI has no health check.
    options = ("--format", "docker", "--isolation", "chroot", "--network", "host", *more)
    engine.buildah("bud", *options, "-f", str(DOCKERFILE), "-t", IMAGE, str(ROOT), show=True)


def make_base(engine: Engine) -> None:
    archive = engine.store / "base.tar"
    packages = "--include=python3,python3-venv,ca-certificates"
    _output(["mmdebstrap", "--variant=minbase", packages, SUITE, str(archive)], show=True)
    container = engine.buildah("from", "scratch")
    engine.buildah("add", "--quiet", container, str(archive), "/")
    archive.unlink()
    engine.buildah("config", "--env", "LANG=C.UTF-8", "--cmd", "python3", container)
    engine.buildah("run", "--isolation", "chroot", container, "--", "sh", "-ec", PREPARE_STAND_IN)
    engine.buildah("commit", "--rm", "--quiet", container, base_image())


def run(engine: Engine, more: list[str]) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # crun refuses a system that has both versions of cgroups; in this mount namespace there is one.
    subprocess.run(["umount", "--recursive", "/sys/fs/cgroup"], check=True)
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"], check=True)
    inspect_image(engine, more)
    command = [sys.executable, "-m", "toolway.testing.http_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().split()[1]
        try:
            run_gateway(engine, f"http://127.0.0.1:{port}/mcp")
        finally:
            engine.podman("rm", "--force", "--time", "0", "--volumes", "gateway", fails=True)
            server.terminate()


def inspect_image(engine: Engine, more: list[str]) -> None:
    """Check what the image says about itself, and which files it adds to its base."""
    found = json.loads(engine.podman("image", "inspect", IMAGE))[0]
    base = json.loads(engine.podman("image", "inspect", base_image()))[0]
    added = (found["Size"] - base["Size"]) / 1e6
    print(f"size: {found['Size'] / 1e6:.0f} MB, of which {added:.0f} MB are not from the base image")
    check("user of the image", found["Config"]["User"] == "1000:1000", found["Config"]["User"])
    check("the image has a health check", "/healthz" in str(found.get("Healthcheck")))
    variables = {each.partition("=")[0] for each in found["Config"]["Env"]}
    given = {each.partition("=")[0] for each in base["Config"]["Env"] or []} | {"PATH", "TOOLWAY_STATE"}
    check("variables of the image", variables <= given, ", ".join(sorted(variables)))
    changes = [
        line[2:] for line in engine.podman("diff", IMAGE, base_image()).splitlines() if line.startswith(("A ", "C "))
    ]
    mounted = [each.split(":")[1] for each in more if ":" in each]  # buildah leaves an empty file or folder there
    foreign = [each for each in changes if not OURS.fullmatch(each) and each not in mounted]
    check("files not in the base", not foreign, f"{len(changes)} paths, not ours: {foreign[:5]}")


def options_of_compose(config: Path) -> list[str]:
    """Return the options of podman for the service of deploy/compose.single.yaml, with another config file."""
    service: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.single.yaml").read_text())["services"][
        "gateway"
    ]
    assert service["read_only"] is True
    words = ["--read-only", "--read-only-tmpfs=false"]
    words += [f"--tmpfs={each}" for each in service["tmpfs"]]
    words += [f"--cap-drop={each}" for each in service["cap_drop"]]
    words += [f"--security-opt={each.removesuffix(':true')}" for each in service["security_opt"]]
    for each in service["volumes"]:
        words.append(f"--volume={config}:{each.split(':', 1)[1]}" if each.startswith("./") else f"--volume={each}")
    return [*words, IMAGE, *service["command"]]


def run_gateway(engine: Engine, remote: str) -> None:
    config = engine.store / "mcp.json"
    document = json.loads((ROOT / "deploy" / "mcp.json").read_text())
    document["mcpServers"]["remote"] = {"url": remote}
    config.write_text(json.dumps(document))
    config.chmod(0o644)  # user 1000 reads it
    engine.podman("rm", "--force", "--time", "0", "--volumes", "gateway", fails=True)
    engine.podman("volume", "rm", "--force", "state", fails=True)
    outside = ("--cgroups=disabled", "--ulimit=host", "--network=host")  # the network namespace of this script
    engine.podman("run", "--detach", "--name", "gateway", *outside, *options_of_compose(config))
    ready = is_ready()
    check("the gateway is ready", ready)
    if not ready:
        print(engine.podman("logs", "gateway"))
        return
    check_container(json.loads(engine.podman("exec", "gateway", "python", "-c", PROBE.read_text())), engine.store)
    said = engine.podman("healthcheck", "run", "gateway", fails=True)
    check("health check of the image", said == "", said)
    key = json.loads(engine.podman("exec", "gateway", "toolway", "--json", "keys", "create", "me"))["token"]
    for server in ("fake", "remote"):
        text = call_tool(key, f"{server}__echo", {"text": f"hello {server}"})
        check(f"call of a tool of {server}", f"hello {server}" in text, text)
    mounted = {"/etc", "/etc/toolway", "/etc/toolway/mcp.json"}  # podman makes them to mount the config file there
    changed = {line[2:] for line in engine.podman("diff", "gateway").splitlines()} - mounted
    check("no file of the image was changed", not changed, ", ".join(sorted(changed)))
    stop(engine, key)


def stop(engine: Engine, key: str) -> None:
    """Send SIGTERM while a call is in flight: it must be finished, and the exit code must be 0."""
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    call["params"] = {"name": "fake__sleep", "arguments": {"seconds": 4}}
    connection = http.client.HTTPConnection("127.0.0.1", 8765, timeout=60)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", "/mcp", json.dumps(call), headers)
    time.sleep(1)
    began = time.monotonic()
    engine.podman("kill", "--signal", "TERM", "gateway")
    text = connection.getresponse().read().decode()
    check("call in flight at SIGTERM", "slept" in text, text)
    code = engine.podman("wait", "gateway")
    check("exit code after SIGTERM", code == "0", f"{code}, after {time.monotonic() - began:.1f} s")


def check_container(found: dict[str, Any], store: Path) -> None:
    status = found["status"]
    check("Python", True, found["python"])
    check("user", status["Uid"].split() == ["1000"] * 4, status["Uid"].split()[0])
    check("no capabilities", int(status["CapEff"], 16) == 0, status["CapEff"])
    check(
        "no new privileges",
        status["NoNewPrivs"] == "1",
        f"NoNewPrivs {status['NoNewPrivs']}, Seccomp {status['Seccomp']}",
    )
    check("writable folders", found["writable"] == ["/home/toolway", "/tmp", STATE], ", ".join(found["writable"]))
    check("no pip, no compiler", not found["tools"] and not found["pip"], ", ".join(found["tools"] + found["pip"]))
    frozen = store / "packages.txt"
    ours = [each for each in found["packages"] if each.startswith("toolway==")]
    frozen.write_text("".join(f"{each}\n" for each in found["packages"] if each not in ours))
    pinned, installed = components(ROOT / "requirements" / "image.txt", store), components(frozen, store)
    if installed is None:
        print("no list of components: cyclonedx-bom is not installed (requirements/release.txt)")
    else:
        differ = sorted(map(str, (pinned or set()) ^ installed))
        check(
            "list of components like the pins", len(ours) == 1 and not differ, f"{len(installed)}, different: {differ}"
        )


def components(requirements: Path, store: Path) -> set[tuple[str, str]] | None:
    """Return name and version of each component that CycloneDX finds. None if it is not installed."""
    program = shutil.which("cyclonedx-py")
    if program is None:
        return None
    target = store / f"{requirements.stem}.cdx.json"
    _output([program, "requirements", "--output-reproducible", "--output-file", str(target), str(requirements)])
    return {
        (re.sub(r"[-_.]+", "-", each["name"].lower()), each["version"])
        for each in json.loads(target.read_text())["components"]
    }


def call_tool(key: str, tool: str, arguments: dict[str, Any]) -> str:
    """Call a tool with the client of the official SDK and return what it prints."""
    client = (sys.executable, str(ROOT / "interop" / "library_client.py"), "sdk", "auto")
    words = [*client, f"{URL}/mcp", key, tool, json.dumps(arguments)]
    return _output(words, fails=True)


def is_ready() -> bool:
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"{URL}/readyz", timeout=2):
                return True
        except OSError:
            time.sleep(0.5)
    return False


if __name__ == "__main__":
    sys.exit(main())

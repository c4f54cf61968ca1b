"""Install the corpus: every server in its own folder or virtual environment.

The target folder is a cache: a folder with a matching marker file is left unchanged. npm packages whose programs have
different names share one tree, which npm fills in a third of the time.

    python interop/install.py --into DIR [--only-callable] [--servers FILE] [--jobs 2]
    python interop/install.py --into DIR --clients
    python interop/install.py --into DIR --login
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corpus import DEFAULT_SERVERS, Package, read_packages

NODE_OLDEST = (20, 20)
NODE_FETCHED = 22
MARKER = ".installed"
SETUP_TOOLS = Path(__file__).resolve().parent.parent / ".uv" / "bin"  # of scripts/install
# Explicitly @latest, because npm would otherwise choose an older version that supports the machine's Node.
CLIENTS = {
    "claude-code": "@anthropic-ai/claude-code@latest",
    "codex": "@openai/codex@latest",
    "gemini-cli": "@google/gemini-cli@latest",
    "inspector": "@modelcontextprotocol/inspector@latest",
    "fastmcp": "fastmcp",
}
PROVIDER = "oidc-provider@9"
PLAIN_PROVIDER = "oauth2-mock-server@9"  # its access tokens have the type JWT
TAIL_LINES = 25
INSTALL_SECONDS = 900


class InstallError(Exception):
    """Failure of a command; the text is the end of its output."""


def main() -> int:
    options = _options()
    into: Path = options.into.resolve()
    if options.clients:
        return _install_clients(into)
    if options.login:
        return _install_login(into)
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to install")
        return 0
    packages = read_packages(options.servers, only_callable=options.only_callable)
    started = time.monotonic()
    failed = _prepare(into, packages)
    if not failed:
        _install_npm_together(into, packages)
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = pool.map(lambda one: _report(one.name, lambda: _install(one, into)), packages)
            failed = [name for name in outcomes if name]
    good = len(packages) - len(failed)
    print(f"{good}/{len(packages)} installed in {time.monotonic() - started:.0f} s")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    parser.add_argument("--clients", action="store_true", help="install the clients for gateway tests, no servers")
    parser.add_argument("--login", action="store_true", help="install identity providers and a client that logs in")
    parser.add_argument("--only-callable", action="store_true", help="only the servers with a call")
    parser.add_argument("--servers", type=Path, default=DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    return parser.parse_args()


def _install_clients(into: Path) -> int:
    """Install the clients, each in its own folder, and a new Node for them."""
    (into / "bin").mkdir(parents=True, exist_ok=True)
    folder = into / "clients"
    failed = [
        _report("uv", lambda: _once(into / "uv", "uv", _make_uv)),
        _report("node", lambda: _once(into / "node-new", f"node {NODE_FETCHED}", _make_new_node)),
        _report("claude-code", lambda: _once_npm(folder, "claude-code")),
        _report("codex", lambda: _once_npm(folder, "codex")),
        _report("gemini-cli", lambda: _once_npm(folder, "gemini-cli")),
        _report("inspector", lambda: _once_npm(folder, "inspector")),
        _report("fastmcp", lambda: _once(folder / "fastmcp", CLIENTS["fastmcp"], lambda to: _make_fastmcp(to, into))),
    ]
    return 1 if any(failed) else 0


def _install_login(into: Path) -> int:
    """Install the identity providers of the login tests, Claude Code, and a new Node for them."""
    (into / "bin").mkdir(parents=True, exist_ok=True)
    failed = [
        _report("node", lambda: _once(into / "node-new", f"node {NODE_FETCHED}", _make_new_node)),
        _report("oidc-provider", lambda: _once(into / "login", PROVIDER, lambda to: _npm_install(to, PROVIDER))),
        _report(
            "oauth2-mock-server",
            lambda: _once(into / "login-plain", PLAIN_PROVIDER, lambda to: _npm_install(to, PLAIN_PROVIDER)),
        ),
    ]
    # Without it, client_login.py says that it skips, and the tests of the providers still run.
    _report("claude-code", lambda: _once_npm(into / "clients", "claude-code"))
    return 1 if any(failed) else 0


def _install_npm_together(into: Path, packages: list[Package]) -> None:
    """Install the npm packages that are missing in one tree. If that fails, each is installed alone later."""
    bins = [each.bin for each in packages]
    missing = {
        each.package: each
        for each in packages
        if each.registry == "npm" and not each.also_install and bins.count(each.bin) == 1
        if not (each.folder(into) / MARKER).exists()
    }
    tree = into / "npm"
    if len(missing) < 2 or tree.exists():  # other servers use the tree
        return
    tree.mkdir()
    if _report(f"{len(missing)} npm packages", lambda: _fill(tree, [*missing])) is not None:
        shutil.rmtree(tree)
        return
    for each in missing.values():
        folder = each.folder(into)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "node_modules").symlink_to(tree / "node_modules")
        if (folder / "node_modules" / ".bin" / each.bin).exists():
            (folder / MARKER).write_text(_digest(_spec(each)), encoding="ascii")


def _fill(folder: Path, specs: list[str]) -> bool:
    _npm_install(folder, *specs)
    return True


def _once_npm(folder: Path, name: str) -> bool:
    return _once(folder / name, CLIENTS[name], lambda to: _npm_install(to, CLIENTS[name]))


def _make_fastmcp(folder: Path, into: Path) -> None:
    venv.create(folder, symlinks=True)
    _pip_install(folder, into / "bin" / "uv", CLIENTS["fastmcp"])


def _prepare(into: Path, packages: list[Package]) -> list[str]:
    """Install the tools that all packages need; return the names of those that failed."""
    (into / "bin").mkdir(parents=True, exist_ok=True)
    registries = {package.registry for package in packages}
    failed = []
    if "npm" in registries:
        failed.append(_report("node", lambda: _once(into / "node", f"node {NODE_OLDEST}", _make_node)))
    if "pypi" in registries:
        failed.append(_report("uv", lambda: _once(into / "uv", "uv", _make_uv)))
    return [name for name in failed if name]


def _report(name: str, install: Callable[[], bool]) -> str | None:
    """Install one item and print the result; return its name if it failed."""
    started = time.monotonic()
    try:
        outcome = "installed" if install() else "already installed"
    except InstallError as error:
        print(f"{name}: FAILED after {time.monotonic() - started:.1f} s\n{error}", flush=True)
        return name
    print(f"{name}: {outcome}, {time.monotonic() - started:.1f} s", flush=True)
    return None


def _install(package: Package, into: Path) -> bool:
    if package.registry == "npm":
        return _once(package.folder(into), _spec(package), lambda folder: _make_npm(folder, package))
    return _once(package.folder(into), _spec(package), lambda folder: _make_venv(folder, package, into / "bin" / "uv"))


def _spec(package: Package) -> str:
    spec = json.dumps([package.registry, package.package, package.also_install, package.bin])
    return spec if package.registry == "npm" else f"{spec} python {sys.version_info[:2]}"


def _digest(spec: str) -> str:
    return hashlib.sha256(spec.encode()).hexdigest()


def _once(folder: Path, spec: str, make: Callable[[Path], None]) -> bool:
    """Fill `folder`, unless its marker contains this spec. Return True if it was filled."""
    marker = folder / MARKER
    digest = _digest(spec)
    if marker.exists() and marker.read_text(encoding="ascii") == digest:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    marker.write_text(digest, encoding="ascii")
    return True


def _make_npm(folder: Path, package: Package) -> None:
    _npm_install(folder, package.package, *package.also_install)
    _expect(folder / "node_modules" / ".bin" / package.bin)


def _npm_install(folder: Path, *specs: str) -> None:
    # Without a package.json, npm would search the parent folders for one and install there.
    (folder / "package.json").write_text('{"private": true}\n', encoding="ascii")
    # Revalidating every cached dependency at the registry takes longer than all other steps.
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    _run([shutil.which("npm") or "npm", "i", *options, *specs], folder)


def _make_venv(folder: Path, package: Package, uv: Path) -> None:
    venv.create(folder, symlinks=True)
    _pip_install(folder, uv, package.package, *package.also_install)
    _expect(folder / "bin" / package.bin)


def _pip_install(folder: Path, uv: Path, *specs: str) -> None:
    python = str(folder / "bin" / "python")
    try:
        _run([str(uv), "pip", "install", "-q", "-p", python, *specs], folder)
    except InstallError as quick:
        # uv does not read pip's configuration, which may name the only reachable index.
        try:
            with_pip = shutil.which("python", path=SETUP_TOOLS) or sys.executable
            _run([with_pip, "-m", "pip", "--python", python, "install", "-q", *specs], folder)
        except InstallError as slow:
            raise InstallError(f"{quick}\npip fails too: {slow}") from slow


def _make_uv(folder: Path) -> None:
    """Provide uv at bin/uv: the machine's own, that of `make setup`, or one from pip. It is quicker than pip."""
    uv = shutil.which("uv") or shutil.which("uv", path=SETUP_TOOLS)
    if uv is None:
        venv.create(folder, with_pip=True, symlinks=True)
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "uv"], folder)
        uv = str(folder / "bin" / "uv")
    _link(folder.parent / "bin" / "uv", uv)


def _make_node(folder: Path) -> None:
    """Provide a Node that is new enough for every server at bin/node: the machine's own, or one from npm."""
    node = shutil.which("node") or "node"
    version = _run([node, "-p", "process.versions.node"], folder)
    new_enough = tuple(map(int, version.split(".")))[:2] >= NODE_OLDEST
    _link(folder.parent / "bin" / "node", node if new_enough else _fetched_node(folder))


def _make_new_node(folder: Path) -> None:
    """Provide a Node that is new enough for every client at bin/node-new."""
    _link(folder.parent / "bin" / "node-new", _fetched_node(folder))


def _fetched_node(folder: Path) -> str:
    platform, arch = _run(
        [shutil.which("node") or "node", "-p", "[process.platform, process.arch].join(' ')"], folder
    ).split()
    # The package `node` selects one of these in an install script; the direct name works without a script.
    prefix = "node-bin" if (platform, arch) == ("darwin", "arm64") else "node"
    own = f"{prefix}-{platform}-{arch}"
    _npm_install(folder, f"{own}@{NODE_FETCHED}")
    return str(folder / "node_modules" / own / "bin" / "node")


def _link(link: Path, program: str) -> None:
    _expect(Path(program))
    link.unlink(missing_ok=True)
    link.symlink_to(program)


def _expect(program: Path) -> None:
    if not program.exists():
        raise InstallError(f"the package does not have {program.name}")


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{command[0]}: {error}") from error
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
        raise InstallError(f"exit code {done.returncode} of {' '.join(command)}\n{tail}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

"""Make a release: version, changelog, tag, wheel and sdist, checksums, list of components, provenance.

    python scripts/release.py --dry-run            build twice, compare and check; change nothing but dist/
    python scripts/release.py 0.2.0                the same, then commit and tag; prints how to publish

Nothing is pushed or uploaded.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
VERSION_FILE = "src/toolway/_version.py"
CHART_FILE = "deploy/helm/toolway/Chart.yaml"
PAGES_WITH_WHEEL = ("README.md", "docs/**/*.md")  # they name the file of the wheel
REQUIRED_IN_WHEEL = ("toolway/py.typed", "toolway/docs/errors/E-TIMEOUT.md", "toolway/gateway/pages/index.html")


class ReleaseError(Exception):
    """A reason why no release can be made."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "version",
        nargs="?",
        help="the new version; default: the next patch version, or the current one before the first release",
    )
    parser.add_argument("--dry-run", action="store_true", help="change no file but those in dist/")
    options = parser.parse_args()
    try:
        release(options.version, dry_run=options.dry_run)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


def release(version: str | None, *, dry_run: bool) -> None:
    """Make the release, or with `dry_run` everything of it that changes no tracked file."""
    current = current_version((ROOT / VERSION_FILE).read_text())
    released = bool(git("tag", "--list", f"v{current}"))
    version = version or (next_patch(current) if released else current)
    require_later(version, current, released=released)
    if not dry_run and git("status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    changed = changed_files(ROOT, current, version, today)
    with tempfile.TemporaryDirectory() as folder:
        source = snapshot(Path(folder) / "source", changed)
        made = [build(source, Path(folder) / name) for name in ("first", "second")]
        compare(made[0], made[1])
        DIST.mkdir(exist_ok=True)
        files = [Path(shutil.copy(path, DIST)) for path in made[0]]
    check_wheel(next(path for path in files if path.suffix == ".whl"), version)
    files += write_sbom(required=not dry_run)
    write_provenance(files, version)
    if dry_run:
        print(f"dry run: {version} would change {', '.join(sorted(changed))}, then commit and tag v{version}")
        return
    for name, text in changed.items():
        (ROOT / name).write_text(text, encoding="utf-8")
    git("commit", "--quiet", "--message", f"release: {version}", "--", *changed)
    git("tag", "--annotate", f"v{version}", "--message", f"Toolway {version}")
    print(f"v{version} is committed and tagged. Publish it:")
    print(f"  git push origin HEAD v{version}")
    print("  python -m pypi_attestations sign dist/*.whl dist/*.tar.gz    # in a CI job with an identity")
    print("  python -m twine upload --attestations dist/*.whl dist/*.tar.gz")
    print(f"  .docs/bin/mike deploy --push --update-aliases {version} latest")
    print("  .docs/bin/mike set-default --push latest    # after the first release: the page at the root of the site")


# -- version and changelog --------------------------------------------------------------------------------------------


def current_version(text: str) -> str:
    """Return the version in the text of _version.py."""
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise ReleaseError(f"{VERSION_FILE} has no version")
    return found[1]


def next_patch(version: str) -> str:
    """Return the version after this one that has only fixes."""
    *head, last = version.split(".")
    return ".".join([*head, str(int(last) + 1)])


def require_later(version: str, current: str, *, released: bool) -> None:
    """Raise `ReleaseError` unless `version` has three numbers and is later than `current`, or is the unreleased one."""
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        raise ReleaseError(f"{version} is not of the form 1.2.3")
    if version == current and not released:
        return
    if tuple(map(int, version.split("."))) <= tuple(map(int, current.split("."))):
        raise ReleaseError(f"{version} is not later than {current}")


def next_changelog(text: str, version: str, date: str) -> str:
    """Return the changelog with the unreleased changes under `version`. Raises `ReleaseError` if there are none."""
    head, found, rest = text.partition("## [Unreleased]\n")
    unreleased = rest.partition("\n## [")[0]
    if not found or not re.search(r"^- ", unreleased, re.MULTILINE):
        raise ReleaseError("CHANGELOG.md has no unreleased change")
    return f"{head}{found}\n## [{version}] - {date}\n{rest}"


def changed_files(root: Path, current: str, version: str, date: str) -> dict[str, str]:
    """Return the new text of each file that a release changes, by its path."""
    changed = {"CHANGELOG.md": next_changelog((root / "CHANGELOG.md").read_text(), version, date)}
    changed[VERSION_FILE] = (root / VERSION_FILE).read_text().replace(f'"{current}"', f'"{version}"')
    chart = (root / CHART_FILE).read_text()
    changed[CHART_FILE] = re.sub(r"(?m)^((?:appV|v)ersion: \"?)[\d.]+", rf"\g<1>{version}", chart)
    citation = (root / "CITATION.cff").read_text()
    changed["CITATION.cff"] = re.sub(r"(?m)^version: .*$", f"version: {version}", citation)
    for page in sorted(path for pattern in PAGES_WITH_WHEEL for path in root.glob(pattern)):
        text = page.read_text()
        if f"toolway-{current}" in text:
            changed[page.relative_to(root).as_posix()] = text.replace(f"toolway-{current}", f"toolway-{version}")
    return {name: text for name, text in changed.items() if (root / name).read_text() != text}


# -- files of the release ---------------------------------------------------------------------------------------------


def snapshot(folder: Path, changed: dict[str, str]) -> Path:
    """Copy the tracked files, and new ones that git does not ignore, with the changes of the release."""
    # A dry run may have new files. Without them, changed files that import them would be in the wheel alone.
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for name, text in changed.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def build(snapshot: Path, folder: Path) -> list[Path]:
    """Build wheel and sdist from a copy of the snapshot, in its own folder."""
    source = folder / "source"
    shutil.copytree(snapshot, source, copy_function=shutil.copyfile)  # other times, other permissions
    environ = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").strip()}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder / "dist")]
    done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"the build failed: {done.stderr[-2000:]}")
    return sorted((folder / "dist").iterdir())


def compare(first: list[Path], second: list[Path]) -> None:
    """Raise `ReleaseError` unless both builds have the same files with the same bytes."""
    digests = [{path.name: digest(path) for path in each} for each in (first, second)]
    if digests[0] != digests[1]:
        differing = sorted({name for name, _ in digests[0].items() ^ digests[1].items()})
        raise ReleaseError(f"two builds differ: {', '.join(differing)}")
    for name, value in digests[0].items():
        print(f"reproducible: {value}  {name}")


def check_wheel(wheel: Path, version: str) -> None:
    """Raise `ReleaseError` if the wheel lacks a required file, or has one that does not belong in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"toolway-{version}.dist-info/METADATA").decode()
    missing = [name for name in REQUIRED_IN_WHEEL if name not in names]
    if missing:
        raise ReleaseError(f"the wheel has no {', '.join(missing)}")
    foreign = [name for name in names if not name.startswith(("toolway/", f"toolway-{version}.dist-info/"))]
    if foreign or any("__pycache__" in name for name in names):
        raise ReleaseError(f"the wheel has files that do not belong in it: {foreign[:5]}")
    if f"\nVersion: {version}\n" not in metadata:
        raise ReleaseError("the metadata of the wheel has another version")
    print(f"wheel: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB, typed")


def write_sbom(*, required: bool) -> list[Path]:
    """Write the components of the image as CycloneDX, if cyclonedx-bom is installed (requirements/release.txt)."""
    beside = Path(sys.executable).with_name("cyclonedx-py")
    program = str(beside) if beside.exists() else shutil.which("cyclonedx-py")
    if program is None:
        if required:
            raise ReleaseError("cyclonedx-bom is missing: pip install --require-hashes -r requirements/release.txt")
        print("no list of components: cyclonedx-bom is not installed (requirements/release.txt)")
        return []
    target = DIST / "toolway-image.cdx.json"
    pins = ROOT / "requirements" / "image.txt"
    command = [program, "requirements", "--output-reproducible", "--output-file", str(target), str(pins)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"the list of components cannot be written: {done.stderr[-1000:]}")
    print(f"components: {len(json.loads(target.read_text())['components'])} in {target.name}")
    return [target]


def write_provenance(files: list[Path], version: str) -> None:
    """Write SHA256SUMS, and an in-toto statement that names the commit the files were built from."""
    digests = {path.name: digest(path) for path in files}
    (DIST / "SHA256SUMS").write_text("".join(f"{value}  {name}\n" for name, value in digests.items()))
    commit = git("rev-parse", "HEAD").strip()
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in digests.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "scripts/release.py",
                "externalParameters": {"version": version},
                "resolvedDependencies": [{"uri": "git:toolway", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": "scripts/release.py"}},
        },
    }
    (DIST / "provenance.json").write_text(json.dumps(statement, indent=2) + "\n")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())

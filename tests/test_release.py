"""scripts/release.py: versions, changelog and checks. CI runs the whole script with --dry-run."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import release  # noqa: E402 # a script, found by the path above

from toolway._version import __version__  # noqa: E402


def test_the_unreleased_changes_get_the_version_and_the_date() -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- a command\n\n## [0.1.0] - 2026-01-01\n\n- all\n"
    made = release.next_changelog(text, "0.2.0", "2026-11-17")
    assert made.index("## [Unreleased]") < made.index("## [0.2.0] - 2026-11-17") < made.index("- a command")
    with pytest.raises(release.ReleaseError, match="no unreleased change"):
        release.next_changelog(made, "0.3.0", "2026-11-18")


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "0.2", "v0.2.0", "0.2.0rc1"])
def test_a_version_that_is_not_later_is_refused(version: str) -> None:
    with pytest.raises(release.ReleaseError):
        release.require_later(version, "0.1.0")


def test_a_release_changes_the_version_everywhere() -> None:
    changed = release.changed_files(ROOT, __version__, "9.8.7", "2026-11-17")
    assert '__version__ = "9.8.7"' in changed[release.VERSION_FILE]
    chart = changed[release.CHART_FILE]
    assert "\nversion: 9.8.7\n" in chart and '\nappVersion: "9.8.7"\n' in chart and "apiVersion: v2" in chart
    assert "\nversion: 9.8.7\n" in changed["CITATION.cff"] and "cff-version: 1.2.0" in changed["CITATION.cff"]
    assert "toolway-9.8.7-py3-none-any.whl" in changed["README.md"]
    assert not any(f"toolway-{__version__}-" in text for text in changed.values())


def test_two_builds_that_differ_are_no_release(tmp_path: Path) -> None:
    for name, text in (("one", "a"), ("two", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.whl").write_text(text)
    with pytest.raises(release.ReleaseError, match=r"differ: x\.whl"):
        release.compare([tmp_path / "one" / "x.whl"], [tmp_path / "two" / "x.whl"])


def test_a_wheel_without_types_is_no_release(tmp_path: Path) -> None:
    wheel = tmp_path / "toolway.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toolway-9.8.7.dist-info/METADATA", "Name: toolway\nVersion: 9.8.7\n")
        for name in release.REQUIRED_IN_WHEEL[1:]:
            archive.writestr(name, "")
    with pytest.raises(release.ReleaseError, match=r"py\.typed"):
        release.check_wheel(wheel, "9.8.7")

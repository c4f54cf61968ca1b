"""scripts/release.py: versions, changelog and checks. CI runs the whole script with --dry-run."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import release  # noqa: E402 # a script, found by the path above

from toolway._version import __version__  # noqa: E402
from toolway.config.clients.registry import CLIENTS  # noqa: E402


def test_unreleased_changes_get_version_and_date() -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- a command\n\n## [0.1.0] - 2026-01-01\n\n- all\n"
    made = release.next_changelog(text, "0.2.0", "2026-11-17")
    assert made.index("## [Unreleased]") < made.index("## [0.2.0] - 2026-11-17") < made.index("- a command")
    with pytest.raises(release.ReleaseError, match="no unreleased change"):
        release.next_changelog(made, "0.3.0", "2026-11-18")


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "0.2", "v0.2.0", "0.2.0rc1"])
def test_version_that_is_not_later_is_rejected(version: str) -> None:
    with pytest.raises(release.ReleaseError):
        release.require_later(version, "0.1.0", released=True)


def test_untagged_version_can_be_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "next_changelog", lambda text, *_: f"{text}\n")  # right after a release it is empty
    release.require_later("0.1.0", "0.1.0", released=False)
    changed = release.changed_files(ROOT, __version__, __version__, "2026-11-18")
    assert list(changed) == ["CHANGELOG.md"]
    with pytest.raises(release.ReleaseError, match="not later"):
        release.require_later("0.0.9", "0.1.0", released=False)


def test_changelog_of_the_first_release_gets_a_date() -> None:
    unreleased = re.sub(r"\n## \[0\.1\.0\] - .*\n", "", (ROOT / "CHANGELOG.md").read_text())
    made = release.next_changelog(unreleased, "0.1.0", "2026-11-18")
    head, _, rest = made.partition("## [0.1.0] - 2026-11-18\n")
    assert head.endswith("## [Unreleased]\n\n") and rest.lstrip().startswith("The first release.")


def test_changelog_has_the_right_number_of_clients() -> None:
    assert f"from {len(CLIENTS)} clients" in (ROOT / "CHANGELOG.md").read_text()


def test_changelog_is_short_with_the_agreed_headings() -> None:
    """The first release describes what there is; every later one has at most 40 lines under fixed headings."""
    text = (ROOT / "CHANGELOG.md").read_text()
    *later, first = text.partition("\n## ")[2].split("\n## ")
    assert len(first.splitlines()) <= 80 and "The first release." in first
    agreed = ["Breaking", "New", "Improved", "Fixed", "Security"]
    for section in later:
        found = [line.removeprefix("### ") for line in section.splitlines() if line.startswith("### ")]
        assert found == [name for name in agreed if name in found], section[:40]
        assert sum(line.startswith("- ") for line in section.splitlines()) <= 40, section[:40]


def test_release_changes_the_version_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "next_changelog", lambda text, *_: f"{text}\n")
    changed = release.changed_files(ROOT, __version__, "9.8.7", "2026-11-17")
    assert '__version__ = "9.8.7"' in changed[release.VERSION_FILE]
    chart = changed[release.CHART_FILE]
    assert "\nversion: 9.8.7\n" in chart and '\nappVersion: "9.8.7"\n' in chart and "apiVersion: v2" in chart
    assert "\nversion: 9.8.7\n" in changed["CITATION.cff"] and "cff-version: 1.2.0" in changed["CITATION.cff"]
    assert "toolway-9.8.7-py3-none-any.whl" in changed["docs/install.md"]
    assert not any(f"toolway-{__version__}-" in text for text in changed.values())


def test_differing_builds_are_rejected(tmp_path: Path) -> None:
    for name, text in (("one", "a"), ("two", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.whl").write_text(text)
    with pytest.raises(release.ReleaseError, match=r"differ: x\.whl"):
        release.compare([tmp_path / "one" / "x.whl"], [tmp_path / "two" / "x.whl"])


def test_wheel_without_types_is_rejected(tmp_path: Path) -> None:
    wheel = tmp_path / "toolway.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toolway-9.8.7.dist-info/METADATA", "Name: toolway\nVersion: 9.8.7\n")
        for name in release.REQUIRED_IN_WHEEL[1:]:
            archive.writestr(name, "")
    with pytest.raises(release.ReleaseError, match=r"py\.typed"):
        release.check_wheel(wheel, "9.8.7")

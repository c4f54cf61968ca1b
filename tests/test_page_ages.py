"""Pages of figures are at most 200 commits older than the code that they describe.

Each page names the commits at which it was measured. Counted are later commits that changed the code of the page.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_COMMITS = 200
STAMP = re.compile(r"\b(?:commit|toolway) ([0-9a-f]{7,40})(?![0-9a-z])")
PATH_OF_A_CALL = ("gateway/mcp", "http", "hub", "middleware", "protocol", "upstream")
PAGES = {
    "docs/benchmarks.md": PATH_OF_A_CALL,
    "docs/reliability.md": PATH_OF_A_CALL,
    "docs/long-runs.md": (*PATH_OF_A_CALL, "config", "parts/openapi"),
    "docs/cluster/sizing.md": ("cluster",),
    "docs/explanation/search-scores.md": ("search",),
}
#: Pages that are too old and must be measured again; then remove them here.
OVERDUE: set[str] = set()


def ages(root: Path, page: str, paths: tuple[str, ...]) -> dict[str, int]:
    """Return, for each commit that a page names, the number of later commits that changed the paths.

    A commit that was rebased since is unknown. Then the commit that put its name on the page counts.
    """
    found = {}
    for stamp in STAMP.findall((root / page).read_text()):
        since = _git(root, "rev-parse", "--verify", "--quiet", f"{stamp}^{{commit}}")
        since = since or _git(root, "log", "-1", "--format=%H", f"-S{stamp}", "--", page)
        counted = _git(root, "rev-list", "--count", f"{since}..HEAD", "--", *paths) if since else "0"
        found[stamp] = int(counted)
    return found


def skip_without_history(root: Path) -> None:
    """Skip the test if the commits of this tree are not all here: an sdist, or a shallow clone."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the age of a page needs the history: git fetch --unshallow")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.mark.parametrize("page", PAGES)
def test_figures_page_is_not_much_older_than_its_code(page: str) -> None:
    skip_without_history(ROOT)
    paths = tuple(f"src/toolway/{path}" for path in PAGES[page])
    assert all((ROOT / path).is_dir() for path in paths), "a package was renamed: correct PAGES"
    found = ages(ROOT, page, paths)
    assert found, f"{page} names no commit: write it with its command"
    old = {stamp: age for stamp, age in found.items() if age > MAX_COMMITS}
    problem = f"measure {page} again: commits of its code since each named commit: {old}"
    if old and page in OVERDUE:
        pytest.xfail(problem)
    assert not old, problem


def test_only_commits_to_the_code_make_a_page_older(tmp_path: Path) -> None:
    def commit(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        _git(tmp_path, "add", "--all")
        _git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message", name)
        return _git(tmp_path, "rev-parse", "--short=8", "HEAD")

    _git(tmp_path, "init", "--quiet")
    measured = commit("code.py", "1")
    commit("page.md", f"- 2026-11-17, commit {measured}\n- toolway 0123456789ab on Python\n")
    commit("other.py", "1")
    commit("code.py", "2")
    commit("code.py", "3")
    assert ages(tmp_path, "page.md", ("code.py",)) == {measured: 2, "0123456789ab": 2}
    assert ages(tmp_path, "page.md", ("other.py",)) == {measured: 1, "0123456789ab": 1}
    (tmp_path / "page.md").write_text("commit fedcba9876")  # written just now, not committed yet
    assert ages(tmp_path, "page.md", ("code.py",)) == {"fedcba9876": 0}

    shallow = tmp_path / "shallow"
    _git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{tmp_path}", str(shallow))
    skip_without_history(tmp_path)
    with pytest.raises(pytest.skip.Exception, match="--unshallow"):
        skip_without_history(shallow)

"""The menu of the documentation site, the pages behind it, and the addresses that moved."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts"))

import moved_pages  # noqa: E402 # a script, found by the path above

MENU = re.findall(
    r"^ +- .*?([a-z0-9/-]+\.md)$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2], re.MULTILINE
)
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings."""
    text = CODE.sub("", (DOCS / page).read_text())
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-").lower() for title in plain}


@pytest.mark.user_trial("32")
def test_menu_has_at_most_45_entries() -> None:
    assert 30 < len(MENU) <= 45
    assert len(set(MENU)) == len(MENU)
    assert all((DOCS / page).is_file() for page in MENU)


def test_every_page_is_reachable_from_the_menu() -> None:
    reached: set[str] = set()
    todo = [f"docs/{page}" for page in MENU]
    while todo:
        page = todo.pop()
        if page in reached or not (ROOT / page).is_file():
            continue
        reached.add(page)
        links = LINK.findall(CODE.sub("", (ROOT / page).read_text()))
        targets = [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links]
        todo += [target for target in targets if target.endswith(".md")]
    pages = {path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")}
    assert pages - reached == set()


@pytest.mark.parametrize(("old", "new"), moved_pages.MOVED.items())
def test_moved_address_leads_to_an_existing_section(old: str, new: str) -> None:
    page, _, anchor = new.partition("#")
    assert not anchor or anchor in anchors(page)
    assert "#" in old or not (DOCS / old).exists()
    gone, mark, section = old.partition("#")
    assert not mark or not (DOCS / gone).exists() or section not in anchors(gone)


def test_no_link_uses_an_old_address() -> None:
    found = [f"{file.relative_to(ROOT)}: {old}" for file, old, _ in moved_pages.old_links()]
    assert found == [], "run scripts/moved_pages.py --fix"


def test_moved_page_redirects_with_its_anchor(tmp_path: Path) -> None:
    moved_pages.on_post_build(config=SimpleNamespace(site_dir=str(tmp_path)))
    text = (tmp_path / "howto/redaction/index.html").read_text()
    assert 'url=../data-leaks/#keep-secrets-out-of-results"' in text
    assert '"#by-choice-kinds-of-text": "../data-leaks/#optional-emails-card-numbers-and-more"' in text
    assert 'url=../#run-it-with-systemd"' in (tmp_path / "operations/systemd/index.html").read_text()


def test_moved_section_redirects() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="howto/gateway.md"))
    html = moved_pages.on_page_content("<p>text", page=page, config=None, files=None)
    assert html.startswith("<p>text") and '"#tool-search": "../tool-search/"' in html
    page.file.src_uri = "index.md"
    assert moved_pages.on_page_content("<p>text", page=page, config=None, files=None) == "<p>text"


def test_anchor_without_an_entry_is_kept() -> None:
    assert moved_pages.new_address("howto/alerts.md", "#files-and-webhook") == "howto/monitoring.md#files-and-webhook"
    assert moved_pages.new_address("howto/gateway.md", "#endpoints") == "howto/gateway.md#endpoints"

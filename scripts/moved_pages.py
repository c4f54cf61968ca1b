"""Old addresses of the documentation: the site redirects them, and links in the repository use the new ones.

    python scripts/moved_pages.py [--fix]

Lists the links of Markdown files that use an address of scripts/moved_pages.toml, or corrects them. mkdocs.yml loads
this file as a hook. mkdocs-redirects is not used: it can't redirect one section of a page that still exists.
"""

from __future__ import annotations

import argparse
import html
import json
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
MOVED: dict[str, str] = tomllib.loads((ROOT / "scripts" / "moved_pages.toml").read_text(encoding="utf-8"))
_LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?(?=\))")
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Moved</title>
<link rel="canonical" href="{url}">
<script>
var moved = {moved};
location.replace(moved[location.hash] || {page} + (location.hash || {anchor}))
</script>
<noscript><meta http-equiv="refresh" content="0; url={url}"></noscript>
<p>This page moved: <a href="{url}">{url}</a>
"""


def new_address(page: str, anchor: str = "") -> str:
    """Return where a page, or a section of it, is now. `anchor` begins with "#" or is empty."""
    if found := MOVED.get(page + anchor):
        return found
    if not anchor or page not in MOVED:
        return MOVED.get(page, page) + anchor
    return MOVED[page].partition("#")[0] + anchor


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Send the reader of a section that moved to its new page."""
    moved = _sections(page.file.src_uri)
    if not moved:
        return content
    script = f"var moved = {json.dumps(moved)}[location.hash]; if (moved) location.replace(moved)"
    return f"{content}\n<script>{script}</script>\n"


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write a page that redirects, for each page that is gone."""
    for old, new in MOVED.items():
        if "#" in old:
            continue
        page, mark, anchor = _relative(old, new).partition("#")
        text = _PAGE.format(
            url=html.escape(page + mark + anchor),
            page=json.dumps(page),
            anchor=json.dumps(mark + anchor),
            moved=json.dumps(_sections(old)),
        )
        target = Path(config.site_dir) / folder_of(old) / "index.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _sections(page: str) -> dict[str, str]:
    """Return the address of each section of this page that moved, as a URL relative to the page."""
    parts = ((old.partition("#"), new) for old, new in MOVED.items())
    return {f"#{anchor}": _relative(page, new) for (old, mark, anchor), new in parts if mark and old == page}


def _relative(page: str, target: str) -> str:
    path, mark, anchor = target.partition("#")
    return posixpath.relpath(folder_of(path) or ".", folder_of(page)) + "/" + mark + anchor


def folder_of(page: str) -> str:
    """Return the folder of the site in which a page is an index.html."""
    return re.sub(r"(^|/)index$", "", page.removesuffix(".md"))


def old_links() -> Iterator[tuple[Path, str, str]]:
    """Yield each link to an old address: its file, and the old and the new target as they are written there."""
    for file in markdown_files():
        folder = file.parent.relative_to(ROOT).as_posix()
        for found in _LINK.finditer(file.read_text(encoding="utf-8")):
            target, anchor = found[1], found[2] or ""
            path = posixpath.normpath(posixpath.join(folder, target)) if target else file.relative_to(ROOT).as_posix()
            page = path.removeprefix("docs/")
            if path != f"docs/{page}" or new_address(page, anchor) == page + anchor:
                continue
            new, mark, new_anchor = new_address(page, anchor).partition("#")
            link = (
                "" if f"docs/{new}" == file.relative_to(ROOT).as_posix() else posixpath.relpath(f"docs/{new}", folder)
            )
            yield file, found[0], link + mark + new_anchor


def markdown_files() -> list[Path]:
    """Return the Markdown files of the repository that can link to pages."""
    folders = ("docs", "deploy", "bench", "packages", "examples", "interop", "conformance")
    return [*ROOT.glob("*.md"), *(file for folder in folders for file in (ROOT / folder).rglob("*.md"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fix", action="store_true", help="write the new addresses into the files")
    fix = parser.parse_args().fix
    found = list(old_links())
    for file, old, new in found:
        print(f"{file.relative_to(ROOT)}: {old} is now {new}")
        if fix:
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace(f"]({old})", f"]({new})"), encoding="utf-8")
    sys.exit(bool(found and not fix))


if __name__ == "__main__":
    main()

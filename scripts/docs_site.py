"""Hooks of the documentation site (mkdocs.yml): project pages, links to source files, Markdown for models.

- The Markdown files in the root of the repository become pages below project/.
- A file of the repository that a page links to, such as an example, is published below source/.
- A link to a folder of the repository becomes plain text, or a link to `repo_url` if mkdocs.yml has one.
- The Python reference of the site is made by mkdocstrings, with the names and sections of the generated page.
- The copy button of a terminal session copies the commands alone, without prompts and output.
- Each page is also published as Markdown at its own path, and llms.txt lists all of them.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PYTHON_REFERENCE = "reference/python.md"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
_PICTURE = re.compile(r'(?<=\s)(src|srcset)="(?!https?:|/)([^"#\s]+)"')  # in HTML, which mkdocs leaves as it is
_CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)

_SESSION = re.compile(r'<div class="language-console highlight">(.*?)</div>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
SOURCE = "source/"  # folder of the site with files of the repository
CONSOLE_STYLE = "assets/console.css"
STYLE = """.highlight .gp { user-select: none; }
.md-typeset td:first-child code { word-break: normal; }
"""  # prompts are not copied; on a phone, a table is scrolled before a name is broken

_published: dict[str, str] = {}  # the Markdown of each page, by its path
_llms: list[str] = []


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the Markdown files of the root as pages, and the style of terminal sessions."""
    _published.clear()
    files.append(File.generated(config, CONSOLE_STYLE, content=STYLE))
    for path in sorted(ROOT.glob("*.md")):
        files.append(File.generated(config, project_page(path.name), content=path.read_text(encoding="utf-8")))
    for name in sorted(linked_files()):
        files.append(File.generated(config, SOURCE + name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page, and keep its Markdown for models."""
    source = page.file.src_uri
    text = rewrite_links(markdown, source, config.repo_url or "", {each.src_uri for each in files})
    _published[source] = text
    return site_reference(text) if source == PYTHON_REFERENCE else text


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the copy button of each terminal session copy its commands."""
    return _SESSION.sub(_with_commands, content)


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the order of the pages for llms.txt."""
    _llms[:] = list(_outline(nav.items, level=2))
    return nav


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the Markdown of all pages, and llms.txt."""
    site = Path(config.site_dir)
    for source, text in _published.items():
        target = site / source
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    more = sorted(_published.keys() - set(_llms))
    listed = [*_llms, "", "## More", "", *more]
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", *map(_llms_line, listed)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def project_page(name: str) -> str:
    """Return the path on the site of a Markdown file in the root of the repository."""
    return f"project/{name.lower().replace('_', '-')}"


def linked_files() -> set[str]:
    """Return the files of the repository that pages link to, except pages and what is in docs/."""
    found = set()
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = _CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))
        folder = page.parent.relative_to(ROOT).as_posix()
        found |= {posixpath.normpath(posixpath.join(folder, target)) for _, _, target, _ in _LINK.findall(text)}
    return {
        path
        for path in found
        if not path.startswith(("docs/", "..")) and path[-3:] != ".md" and (ROOT / path).is_file()
    }


def rewrite_links(markdown: str, source: str, repo_url: str, pages: set[str]) -> str:
    """Return the text with links that work on the site. Code is not changed."""
    # Where the file is in the repository decides what its relative links mean.
    names = {project_page(path.name): path.name for path in ROOT.glob("*.md")}
    folder = posixpath.dirname(names.get(source, f"docs/{source}"))

    def link(found: re.Match[str]) -> str:
        image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = path.removeprefix("docs/") if path.startswith("docs/") else project_page(path)
        if path == "docs/decisions":
            inside = "decisions/index.md"
        if SOURCE + path in pages:
            inside = SOURCE + path
        if inside in pages:
            return f"{image}[{text}]({posixpath.relpath(inside, posixpath.dirname(source) or '.')}{anchor})"
        if repo_url and not image:
            return f"[{text}]({repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        # Without a public repository, the name of the file is all that can be given.
        return text if "`" in text or path in text else f"{text} (`{path}`)"

    def picture(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[2]))
        inside = path.removeprefix("docs/") if path.startswith("docs/") else SOURCE + path
        at = source.removesuffix(".md").removesuffix("index") or "."  # the folder that is the address of the page
        return f'{found[1]}="{posixpath.relpath(inside, at)}"'

    parts = _CODE.split(markdown)
    texts = (part if index % 2 else _LINK.sub(link, part) for index, part in enumerate(_joined(parts)))
    return "".join(part if index % 2 else _PICTURE.sub(picture, part) for index, part in enumerate(texts))


def _joined(parts: list[str]) -> list[str]:
    """Join inline code to the text around it: a link may contain code."""
    joined = [parts[0]]
    for code, text in zip(parts[1::2], parts[2::2], strict=True):
        if code.startswith("`") and not code.startswith("```"):
            joined[-1] += code + text
        else:
            joined += [code, text]
    return joined


def _with_commands(found: re.Match[str]) -> str:
    """Return a terminal session with its commands in `data-copy`, which the theme copies instead of the shown text."""
    commands: list[str] = []
    continued = False
    for line in html.unescape(_TAG.sub("", found[1])).splitlines():
        continued = line.startswith("$ ") or (continued and line.startswith(">"))
        if continued:
            commands.append(line[2:].rstrip())
    if not commands:
        return found[0]
    return found[0].replace("<div ", f'<div data-copy="{html.escape(chr(10).join(commands))}" ', 1)


def site_reference(markdown: str) -> str:
    """Return the Python reference of the site: a directive of mkdocstrings for each name of the generated page."""
    lines = []
    for line in markdown.splitlines():
        if found := re.match(r"### `(\w+)", line):
            lines += ["", f"::: toolway.{found[1]}"]
        elif line.startswith(("# ", "## ", "Every public name")):
            lines += ["", line]
    return "\n".join(lines)


def _outline(items: list[Any], level: int) -> list[str]:
    found: list[str] = []
    for item in items:
        if isinstance(item, Section):
            found += ["", f"{'#' * level} {item.title}", "", *_outline(item.children, level + 1)]
        elif isinstance(item, Page):
            found.append(item.file.src_uri)
    return found


def _llms_line(line: str) -> str:
    """Return a line of llms.txt: a heading, or a page with its title and first sentence."""
    text = _published.get(line)
    if text is None:
        return line
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    body = _CODE_BLOCK.sub("", text[title.end() :] if title else text)
    prose = (" ".join(part.split()) for part in body.split("\n\n"))
    about = next((part for part in prose if part and part[0] not in "#|<!-$*"), "")
    about = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", about)
    sentence = re.split(r"(?<=[.:]) ", about, maxsplit=1)[0].rstrip(":")
    return f"- [{title[1] if title else line}]({line})" + (f": {sentence}" if sentence else "")

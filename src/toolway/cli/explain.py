"""`toolway explain`: the page of an error code. The pages are those of docs/errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from toolway.cli.exits import Exit
from toolway.cli.meant import did_you_mean
from toolway.cli.options import Session
from toolway.errors import NotFound

_PACKAGE: Final = Path(__file__).resolve().parents[1]
# In an installed package, and in a checkout.
PLACES: Final = (_PACKAGE / "docs" / "errors", _PACKAGE.parents[1] / "docs" / "errors")


def explain(session: Session, code: str | None) -> Exit:
    """One page, or with no code all codes."""
    pages = {page.stem: page for folder in PLACES for page in folder.glob("E-*.md")}
    output = session.output
    if code is None:
        rows = [(name, first_words(pages[name])) for name in sorted(pages)]
        if output.as_json:
            output.facts({"codes": [{"code": name, "meaning": meaning} for name, meaning in rows]})
        else:
            output.table(("code", "meaning"), rows)
        return Exit.OK
    wanted = code.upper() if code.upper().startswith("E-") else f"E-{code.upper()}"
    if wanted not in pages:
        fix = did_you_mean(wanted, pages) or "see them all: toolway explain"
        raise NotFound(f"there is no error code {code!r}", fix=fix)
    text = pages[wanted].read_text(encoding="utf-8")
    if output.as_json:
        output.facts({"code": wanted, "meaning": first_words(pages[wanted]), "text": text})
    else:
        sys.stdout.write(text)
    return Exit.OK


def first_words(page: Path) -> str:
    """What a code means, in the first paragraph of its page."""
    return page.read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")

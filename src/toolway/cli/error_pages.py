"""The pages about error codes, from docs/errors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE_DIR: Final = Path(__file__).resolve().parents[1]
# In an installed package, and in a source checkout.
ERROR_PAGE_DIRS: Final = (_PACKAGE_DIR / "docs" / "errors", _PACKAGE_DIR.parents[1] / "docs" / "errors")


def first_paragraph(page: Path) -> str:
    """Return the first paragraph of an error code's page, which states the meaning of the code."""
    return page.read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")

"""A stdio MCP server of both eras that misbehaves on purpose.

    python -m toolway.testing.fake --list-modes
    python -m toolway.testing.fake --mode garbage --era handshake

It also runs by its path, which is faster and needs nothing installed: `python -I -S …/fake.py`.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


def main() -> None:
    if not __package__:
        _stand_alone()
    from toolway.testing.fakes import stdio_main

    stdio_main.main()


def _stand_alone() -> None:
    """Make the packages around this file known by name only, so that nothing of them is run."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, folder in (("toolway", os.path.dirname(here)), ("toolway.testing", here)):
        package = ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package


if __name__ == "__main__":
    main()

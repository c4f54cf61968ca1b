"""Fake stdio MCP server, legacy (before 2026-07-28) and modern, that misbehaves on request.

    python -m toolway.testing.stdio_main --list-modes
    python -m toolway.testing.stdio_main --mode garbage --era legacy

It also runs by its path, which is faster and works without an installed package: `python -I -S …/stdio_main.py`.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


def main() -> None:
    if not __package__:
        _register_empty_packages()
    from toolway.testing import command_line

    command_line.main()


def _register_empty_packages() -> None:
    """Register empty packages `toolway` and `toolway.testing`, for a faster start.

    Imports then find their modules without executing the `__init__` modules.
    """
    testing_dir = os.path.dirname(os.path.abspath(__file__))
    for name, folder in (("toolway", os.path.dirname(testing_dir)), ("toolway.testing", testing_dir)):
        package = ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package


if __name__ == "__main__":
    main()

"""Packages of `npx` and `uvx` entries: `toolway.lock`, installed trees, malware records."""

from __future__ import annotations

from typing import Final

FOLDER_NAME: Final = "packages"  # in the data folder of Toolway, and in its state folder

"""What is wrong with a configuration without making it useless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `error`: the server is left out; `warning`: it is used, but look; `note`: for your information."""

    server: str  # as the file spells it; empty where it is about the file
    what: str
    evidence: str = ""
    fix: str = ""
    code: str = "E-CONFIG"
    severity: Literal["error", "warning", "note"] = "error"
    file: str = ""
    line: int | None = None

    @classmethod
    def of(cls, error: ConfigError, server: str = "") -> Problem:
        return cls(server, error.what, error.evidence, error.fix, error.code, file=error.file, line=error.line)

    @property
    def place(self) -> str:
        """`mcp.json:12`, or as much of it as is known."""
        return f"{self.file}:{self.line}" if self.file and self.line else self.file

    def __str__(self) -> str:
        where = self.place or self.server
        text = f"{where}: {self.what}" if where else self.what
        if self.evidence:
            text += f": {self.evidence}"
        if self.fix:
            text += f" → {self.fix}"
        return f"{text} [{self.code}]"

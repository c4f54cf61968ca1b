"""What a published description of a server leaves open for whoever installs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolway.config.formats import normalised


@dataclass(frozen=True, slots=True)
class Ask:
    """One value that is wanted. A secret does not go into a file but into the store, under `secret_name`."""

    name: str  # TOKEN
    where: str  # env.TOKEN, headers.Authorization, args, url
    description: str = ""
    required: bool = False
    secret: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    many: bool = False  # several values are allowed
    secret_name: str = ""  # in the store

    @property
    def open(self) -> bool:
        """Does the server lack something without an answer?"""
        return self.required and self.default is None


def short_name(name: str) -> str:
    """`io.github.someone/the-server` → `the-server`: the name that an entry gets."""
    return normalised(name.rpartition("/")[2] or name)

"""Opened breakers, told to the other gateways of the cluster: a server that fails at one is left alone by all.

A server that has an owner is reached through it, so what one gateway finds says nothing to another: only its tools are
told of. What a person does with a breaker is done everywhere. All of it is news and stands in no record: who missed it
finds out by itself, with its next calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from toolway.gateway.replica.shared.news import Following
from toolway.model import Json
from toolway.resilience.breaking import Board

KIND: Final = "breakers"
_LONGEST: Final = 300  # characters of a name


class Breakers:
    """`servers` are those that there are, and `owned` says whether one is reached through its owner."""

    def __init__(self, board: Board, servers: Callable[[], Collection[str]], owned: Callable[[str], bool]) -> None:
        self._board = board
        self._servers = servers
        self._owned = owned

    def follow(self, following: Following) -> None:
        following.on_news(KIND, self.hear)
        self._board.on_opened = partial(self._opened, following)
        self._board.on_person = partial(self._person, following)

    def _opened(self, following: Following, server: str, tool: str, wait: float) -> None:
        if tool or not self._owned(server):
            following.say(KIND, {"server": server, "tool": tool, "wait": round(wait, 3), "person": False})

    def _person(self, following: Following, server: str, tool: str, wait: float) -> None:
        following.say(KIND, {"server": server, "tool": tool, "wait": round(wait, 3), "person": True})

    def hear(self, news: Json) -> None:
        server, tool, wait = news.get("server"), news.get("tool"), news.get("wait")
        if not isinstance(server, str) or not isinstance(tool, str) or len(tool) > _LONGEST:
            return
        if server not in self._servers() or not isinstance(wait, int | float) or not wait >= 0:
            return
        now = asyncio.get_running_loop().time()
        self._board.told(server, tool, wait, now, by_person=news.get("person") is True)

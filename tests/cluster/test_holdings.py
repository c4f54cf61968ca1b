"""What a node holds: begun once, ended once, and not taken up again by an answer that is older than it seems."""

from __future__ import annotations

from toolway.cluster.holdings import Holdings
from toolway.cluster.record.places import Held, Place


class Book:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, held: Held) -> None:
        self.lines.append(f"begin {held.place.server} {held.fence}")

    async def finish(self, held: Held) -> None: ...

    def end(self, held: Held) -> None:
        self.lines.append(f"end {held.place.server} {held.fence}")


def _held(server: str, fence: int, *, cost: int = 1, recalled: bool = False) -> Held:
    return Held(Place("acme", server), "n", fence, cost=cost, recalled=recalled)


def _holdings(*held: Held) -> tuple[Holdings, Book]:
    book = Book()
    holdings = Holdings(book)
    holdings.begin(held)
    book.lines.clear()
    return holdings, book


def test_an_answer_from_before_does_not_bring_back_what_was_given() -> None:
    a = _held("a", 1)
    holdings, book = _holdings(a)
    assert holdings.give(a) and not holdings.give(a)
    holdings.agree([a], given=holdings.given)  # the record was asked before it was told
    assert book.lines == ["end a 1"] and len(holdings) == 0
    holdings.told(1)
    holdings.agree([_held("a", 2)], given=holdings.given)
    assert book.lines == ["end a 1", "begin a 2"]


def test_what_the_record_does_not_say_ends_and_what_it_says_begins() -> None:
    holdings, book = _holdings(_held("a", 1), _held("b", 1))
    holdings.agree([_held("b", 2), _held("c", 1)], given=())
    assert book.lines == ["end a 1", "end b 1", "begin b 2", "begin c 1"]


def test_the_load_is_what_all_of_it_costs() -> None:
    holdings, _ = _holdings(_held("a", 1), _held("b", 1, cost=0))
    assert holdings.load == 1
    holdings.agree([_held("a", 1), _held("b", 1, cost=0), _held("c", 1)], given=())
    assert holdings.load == 2
    holdings.agree([_held("a", 1, cost=0), _held("b", 1, cost=0), _held("c", 1)], given=())
    assert holdings.load == 1
    holdings.lose_all()
    assert holdings.load == 0 and list(holdings) == []


def test_what_is_recalled_is_noted_and_goes_on() -> None:
    holdings, book = _holdings(_held("a", 1))
    holdings.note([_held("a", 1, recalled=True), _held("other", 1, recalled=True)])
    assert [held.recalled for held in holdings] == [True] and book.lines == []


def test_what_moved_is_told_when_others_may_take_it() -> None:
    a, b = _held("a", 1), _held("b", 1)
    holdings, _ = _holdings()
    told: list[tuple[list[Held], list[Held]]] = []
    holdings.on_moved = lambda took, lost: told.append((list(took), list(lost)))
    holdings.begin([a, b])
    holdings.give(a)
    assert told == [([a, b], [])]  # the record does not know it yet
    holdings.told(1)
    holdings.lose_all()
    assert told == [([a, b], []), ([], [a]), ([], [b])]

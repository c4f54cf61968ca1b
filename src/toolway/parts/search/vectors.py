"""Scores of tools by the meaning of a query: vectors of an embedding model, kept in memory and in a store.

    source = ModelVectors(embedder, TableVectorStore(database, key, embedder.identity))
    search.set_vectors(source)

Theory of operation
-------------------
An `Embedder` turns strings into vectors of length 1: a model on this machine (`minilm.py`), or a service
(`endpoint.py`). Tools are embedded in the background, each text once: the store keeps its vector under model and hash
of the text. Until a tool has a vector, it is ranked by words. A query is embedded within a short time limit. If that
fails, this search ranks by words alone, and `problem` says why. Nothing here raises an error to the code that searches.

A query of several sentences often needs several tools, and one vector of all is near to none of them. So each sentence
has a vector too, and a tool is as near as the nearest of them.

All vectors are one matrix, so a query costs one multiplication. Needs numpy; imported only if meaning is configured.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toolway.catalog.catalog import Tool
from toolway.parts.search.vector_store import EmbeddingError, VectorStore
from toolway.search.words import split_name

Vector: TypeAlias = NDArray[np.float32]

QUERY_TIMEOUT_S: Final = 0.3  # for the vector of a query; after that, words alone
DOCUMENT_TIMEOUT_S: Final = 30.0  # for the vectors of one batch of tools
BATCH: Final = 64
SAVE_EVERY: Final = 512  # new vectors
MAX_TOOLS: Final = 60_000  # tools with vectors; any more are ranked by words
MAX_QUERIES: Final = 1_000  # queries whose vector is kept
MAX_TEXT_CHARS: Final = 2_000  # of a definition or a query
VAGUE_WORDS: Final = frozenset(("mcp", "server", "servers", "tool", "tools"))  # in the name of a server
MAX_SENTENCES: Final = 4  # of a query, each with its own vector
MIN_SENTENCE_WORDS: Final = 3
RETRY_DELAYS_S: Final = (5.0, 30.0, 300.0)  # after a batch of tools failed; the last one repeats
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|\n+")
_log = logging.getLogger("toolway.search")


class Embedder(Protocol):
    """An embedding model: turns strings into vectors of length 1."""

    @property
    def identity(self) -> str:
        """Return a string that identifies model and vector format. Vectors of different identities are never mixed."""

    async def embed(self, texts: Sequence[str], timeout: float) -> list[Vector]:
        """Return one vector per string.

        Raises `EmbeddingError`, including when it takes longer than `timeout` seconds.
        """

    async def close(self) -> None: ...


class _Table(NamedTuple):
    """A matrix with the embedding vectors of all tools, one row per tool.

    `known` is False for rows whose tool has no vector yet.
    """

    tools: Sequence[Tool]
    keys: list[bytes]
    matrix: NDArray[np.float32]
    known: NDArray[np.bool_]


class ModelVectors:
    """Embedding search: scores tools by the cosine between their vectors and the query's (`ToolSearch.set_vectors`).

    It belongs to one event loop. `close` ends its background task.
    """

    def __init__(
        self,
        embedder: Embedder,
        store: VectorStore,
        *,
        query_timeout: float = QUERY_TIMEOUT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._embedder = embedder
        self._store = store
        self._query_timeout = query_timeout
        self._sleep = sleep
        self._queries: OrderedDict[str, NDArray[np.float32]] = OrderedDict()  # vectors of its passages, one a row
        self._query_problem = ""
        self._document_problem = ""
        self._wanted: tuple[Tool, ...] = ()
        self._table = _Table((), [], np.zeros((0, 0), np.float32), np.zeros(0, np.bool_))
        self._refreshing: asyncio.Task[None] | None = None
        self._waiting = False  # the task waits before it tries again
        self._assembled = asyncio.Event()  # the matrix belongs to the wanted tools
        self._complete = asyncio.Event()  # and each of them has its vector
        self._text_keys: dict[int, tuple[Tool, bytes]] = {}  # by id; the tool is kept, so the id stays its own

    # -- of a search --------------------------------------------------------------------------------------------------

    async def prepare(self, queries: Sequence[str], tools: Sequence[Tool]) -> None:
        """Embed new queries within the time limit, and start to embed new tools."""
        self._follow(tools)
        new = [query for query in dict.fromkeys(queries) if query not in self._queries]
        limit = asyncio.get_running_loop().time() + self._query_timeout
        if new:
            await self._embed_queries(new, limit)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(limit):
                await self._assembled.wait()

    async def _embed_queries(self, queries: Sequence[str], limit: float) -> None:
        # Several queries are the steps of a task, split by the model that asks.
        passages = {query: split_query(query) if len(queries) == 1 else [query[:MAX_TEXT_CHARS]] for query in queries}
        texts = [text for found in passages.values() for text in found]
        try:
            async with asyncio.timeout_at(limit + 0.05):  # the embedder ends before and knows more about why
                vectors = iter(await self._embedder.embed(texts, self._query_timeout))
        except TimeoutError:
            self._query_problem = "the query was not embedded in time"
            return
        except EmbeddingError as exc:
            self._query_problem = str(exc)
            return
        self._query_problem = ""
        for query, found in passages.items():
            rows = [next(vectors) for _ in found]
            self._queries[query] = np.stack([row for row in rows if len(row) == len(rows[0])])
        while len(self._queries) > MAX_QUERIES:
            self._queries.popitem(last=False)

    def score(self, query: str, tools: Sequence[Tool]) -> Sequence[float | None] | None:
        """Return, for each tool, the cosine between its vector and the query's nearest vector.

        The score is None for a tool without a vector. This may be called in a thread.
        """
        passages, table = self._queries.get(query), self._table  # once: a search in a thread sees one state
        if passages is None or tools is not table.tools or not table.known.any():
            return None
        if passages.shape[1] != table.matrix.shape[1]:
            return None  # the service has another model by now
        with suppress(KeyError):
            self._queries.move_to_end(query)
        known = table.known.copy()  # before the multiplication: a vector added during it does not count yet
        with np.errstate(all="ignore"):  # some libraries for linear algebra leave their own flags
            scores: list[float | None] = (table.matrix @ passages.T).max(axis=1).tolist()
        if not known.all():
            scores = [score if has_vector else None for score, has_vector in zip(scores, known.tolist(), strict=True)]
        return scores

    @property
    def problem(self) -> str:
        """Return why the last query or some tools have no vectors.

        Return "" if everything has a vector or will have one soon.
        """
        return self._query_problem or self._document_problem

    @property
    def embedded(self) -> tuple[int, int]:
        """Return how many tools of the last search have a vector, and how many tools it had."""
        return int(self._table.known.sum()) if self._table.tools is self._wanted else 0, len(self._wanted)

    async def wait_complete(self) -> None:
        """Wait until each tool of the last search has an embedding vector."""
        await self._complete.wait()

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await self._refreshing
        await self._embedder.close()

    # -- vectors of tools ---------------------------------------------------------------------------------------------

    def _follow(self, tools: Sequence[Tool]) -> None:
        if tools is not self._wanted:
            self._wanted = tools if isinstance(tools, tuple) else tuple(tools)
            self._assembled.clear()
            self._complete.clear()
            if self._refreshing is not None and self._waiting:
                self._refreshing.cancel()
                self._refreshing = None
        if not self._complete.is_set() and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        """Embed the tools of the last search until all have a vector.

        This starts over if the list of tools changes in the meantime, and after a pause if the embedder fails.
        """
        failures = 0
        while not self._complete.is_set():
            tools = self._wanted
            try:
                await self._embed_tools(tools)
            except EmbeddingError as exc:
                self._document_problem = str(exc)
                _log.warning("tools are ranked by words: %s", exc)
                self._assembled.set()
                self._waiting = True
                try:
                    await self._sleep(RETRY_DELAYS_S[min(failures, len(RETRY_DELAYS_S) - 1)])
                finally:
                    self._waiting = False
                failures += 1
            else:
                self._document_problem, failures = "", 0
                if tools is self._wanted:
                    self._assembled.set()
                    self._complete.set()

    async def _embed_tools(self, tools: tuple[Tool, ...]) -> None:
        texts, keys = await asyncio.to_thread(self._describe, tools)
        await self._assemble(tools, keys)
        missing = [row for row in range(min(len(tools), MAX_TOOLS)) if not self._table.known[row]]
        unsaved: dict[bytes, bytes] = {}
        try:
            for begin in range(0, len(missing), BATCH):
                rows = missing[begin : begin + BATCH]
                vectors = await self._embedder.embed([texts[row] for row in rows], DOCUMENT_TIMEOUT_S)
                self._keep(rows, vectors, unsaved)
                if tools is not self._wanted:
                    return
                self._assembled.set()
                if len(unsaved) >= SAVE_EVERY:
                    await self._store.save(unsaved, keys)
                    unsaved = {}
            if not self._table.known[:MAX_TOOLS].all():
                raise EmbeddingError("the service answered vectors of different lengths")
        finally:
            if unsaved:
                await self._store.save(unsaved, keys)

    def _describe(self, tools: Sequence[Tool]) -> tuple[list[str], list[bytes]]:
        """Return, for each tool, the text to embed and its SHA-256. Runs in a thread."""
        texts = [describe_tool(tool) for tool in tools]
        known = self._text_keys
        self._text_keys = {}
        keys = []
        for tool, text in zip(tools, texts, strict=True):
            entry = known.get(id(tool))
            key = entry[1] if entry is not None and entry[0] is tool else hashlib.sha256(text.encode()).digest()
            self._text_keys[id(tool)] = (tool, key)
            keys.append(key)
        return texts, keys

    async def _assemble(self, tools: tuple[Tool, ...], keys: list[bytes]) -> None:
        """Build the matrix for these tools, taking their vectors from the old matrix or the store."""
        before = self._table
        if tools is before.tools:
            return
        old = {key: row for row, key in enumerate(before.keys) if before.known[row]}
        missing = [key for key in dict.fromkeys(keys[:MAX_TOOLS]) if key not in old]
        stored = await self._store.load(missing) if missing else {}
        width = before.matrix.shape[1]
        decoded = {key: vector for key, data in stored.items() if (vector := _decode(data, width)) is not None}
        width = width or max((len(vector) for vector in decoded.values()), default=0)
        matrix, known = np.zeros((len(keys), width), np.float32), np.zeros(len(keys), np.bool_)
        for row, key in enumerate(keys[:MAX_TOOLS]):
            vector = before.matrix[old[key]] if key in old else decoded.get(key)
            if vector is not None and len(vector) == width:
                matrix[row], known[row] = vector, True
        self._table = _Table(tools, keys, matrix, known)
        if known.any():
            self._assembled.set()

    def _keep(self, rows: Sequence[int], vectors: Sequence[Vector], unsaved: dict[bytes, bytes]) -> None:
        """Put new tool vectors into these rows of the matrix, and into `unsaved` for storing later."""
        table, width = self._table, len(vectors[0])
        if table.matrix.shape[1] != width:  # the first vectors, or a service that changed: the old ones are useless
            rows_in_all = len(table.keys)
            matrix, known = np.zeros((rows_in_all, width), np.float32), np.zeros(rows_in_all, np.bool_)
            table = self._table = _Table(table.tools, table.keys, matrix, known)
        for row, vector in zip(rows, vectors, strict=True):
            table.matrix[row] = vector
            table.known[row] = True
            unsaved[table.keys[row]] = vector.astype("<f2").tobytes()


def split_query(query: str) -> list[str]:
    """Return the strings to embed for a query: the whole query, and its first sentences if it has several."""
    whole = query[:MAX_TEXT_CHARS]
    sentences = [text for text in map(str.strip, _SENTENCE_END.split(whole)) if len(text.split()) >= MIN_SENTENCE_WORDS]
    return [whole, *sentences[:MAX_SENTENCES]] if len(sentences) > 1 else [whole]


def describe_tool(tool: Tool) -> str:
    """Return the text to embed for a tool: server, name, and description.

    The server's name is left out if it is "tools".
    """
    words = split_name(tool.server)
    server = "" if VAGUE_WORDS.issuperset(words.lower().split()) else f"{words} "
    return f"{server}{split_name(tool.name)}: {tool.description or tool.title}"[:MAX_TEXT_CHARS]


def to_unit_length(values: Any) -> Vector:
    """Return `values` as a vector of length 1.

    Raises `EmbeddingError` if they are not a finite, non-zero vector.
    """
    try:
        with np.errstate(over="ignore"):
            vector = np.asarray(values, np.float32)
            length = float(np.linalg.norm(vector)) if vector.ndim == 1 and vector.size else 0.0
    except (TypeError, ValueError, OverflowError):
        raise EmbeddingError("the vector is not a list of numbers") from None
    if not np.isfinite(length) or length == 0:
        raise EmbeddingError("the vector is empty, zero or not finite")
    return np.asarray(vector / np.float32(length), np.float32)


def _decode(data: bytes, width: int) -> Vector | None:
    """Return a stored vector, or None if it is damaged or has a different width."""
    if not data or len(data) % 2 or (width and len(data) != 2 * width):
        return None
    try:
        return to_unit_length(np.frombuffer(data, "<f2"))
    except EmbeddingError:
        return None

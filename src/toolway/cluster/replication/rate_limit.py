"""Rate limits of API keys across all nodes.

Each key's bucket is in the database, and all nodes draw on it. Tokens are leased ahead of time, so no call waits for
the database: each node holds about a second's worth and settles in the background.

Rule 1. Leased tokens were taken from the bucket before they are spent, so they never exceed the rate.
Rule 2. A key that is new to a node, or was idle, starts on credit. Tokens spent on credit are debited with the next
        query even if the bucket is empty: later calls wait longer.
Rule 3. So the rate can be exceeded once, by the credit of all nodes together: a quarter of the bucket, or one call per
        node if that is more. Over any longer time the rate is kept.
Rule 4. Unused tokens are returned. Until then other nodes miss them: at most one second's demand of a node.
Rule 5. While the database is unavailable, each node grants itself its share of the rate, on credit.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from toolway.cluster.db.client_state import RateGrant, RateRequest
from toolway.cluster.queries import QueryRunner
from toolway.gateway.rate_limit import Rate

LEASE_AHEAD_S: Final = 1.0  # seconds of demand to lease ahead
MIN_DEMAND_WINDOW_S: Final = 0.1  # seconds: shorter intervals between two queries count as this long
IDLE_AFTER_S: Final = 2.0  # seconds without a call after which unused tokens are returned
CREDIT_FRACTION: Final = 0.25  # of a bucket, for all nodes together
MIN_REFILL_DELAY_S: Final = 0.25  # seconds, at least, between two queries for a bucket that had too few tokens
EXPECTED_QUERY_S: Final = 0.1  # seconds until a query result may be available

MIN_QUERY_INTERVAL_S: Final = 0.05  # seconds between two queries
IDLE_CHECK_INTERVAL_S: Final = 0.5  # seconds between two checks for idle keys
QUERY_TIMEOUT_S: Final = 2.0  # seconds
QUERY_BATCH: Final = 200  # keys in one query
MAX_ACTIVE_KEYS: Final = 10_000  # keys in use at the same time; calls with any other key are rejected
CLEANUP_INTERVAL_S: Final = 3600.0  # seconds between two deletions of buckets that were unused for days

log = logging.getLogger("toolway.cluster")


class RateBucketStore(Protocol):
    """Store of rate-limit buckets in the database, implemented in `db/client_state.py`."""

    async def acquire(self, tenant: str, requests: Sequence[RateRequest]) -> Mapping[str, RateGrant]: ...

    async def delete_unused(self, tenant: str) -> None: ...


class LeasedRateLimiter:
    """A cluster node's rate limiter, which leases API key tokens from the database.

    `node_count()` returns the number of nodes.
    """

    def __init__(
        self, buckets: RateBucketStore, tenant: str, node_count: Callable[[], int], now: Callable[[], float]
    ) -> None:
        self._buckets = buckets
        self._tenant = tenant
        self._node_count = node_count
        self._now = now
        self._leases: dict[str, TokenLease] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._run_query = QueryRunner(QUERY_TIMEOUT_S)
        self._task: asyncio.Task[None] | None = None
        self._cleaned_at = now()
        self.is_standalone = False  # the database is unavailable
        self.query_count = 0  # queries sent

    def try_acquire(self, key_id: str, rate: Rate) -> float:
        """Take a token of an API key and return 0.0, or return the seconds until a retry."""
        now = self._now()
        lease = self._leases.get(key_id)
        if lease is None or lease.rate != rate:
            if len(self._leases) >= MAX_ACTIVE_KEYS:
                return MIN_QUERY_INTERVAL_S  # until another key is idle
            lease = self._leases[key_id] = TokenLease(rate, self._node_count(), now)
        wait = lease.take_token(now, standalone=self.is_standalone)
        if key_id not in self._due and lease.needs_refill(now):
            self._due.add(key_id)
            self._wake.set()
        return wait

    def give_back(self, key_id: str) -> None:
        """Return the token of a call that was not made, right after `try_acquire` took it."""
        self._leases[key_id].give_back()

    def start(self) -> None:
        """Start the background task that fetches and returns tokens in batches."""
        self._task = asyncio.create_task(self._run_settlement())

    async def close(self) -> None:
        """Stop, and return unused rate-limit tokens to the database if it is reachable."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        debits = {key: debit for key, lease in self._leases.items() if (debit := lease.take_final_debit())}
        with suppress(Exception):
            for batch in _split_batches(list(debits), QUERY_BATCH):
                await self._request_tokens([_rate_request(key, self._leases[key], (debits[key], 0)) for key in batch])
        await self._run_query.wait_pending()

    async def _run_settlement(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_CHECK_INTERVAL_S if self._leases else CLEANUP_INTERVAL_S):
                    await self._wake.wait()
            self._wake.clear()
            self._collect_due()
            for batch in _split_batches(sorted(self._due), QUERY_BATCH):
                await self._settle_batch(batch)
            await self._delete_old_buckets()
            await asyncio.sleep(MIN_QUERY_INTERVAL_S)

    def _collect_due(self) -> None:
        """Collect API keys whose tokens must be fetched or returned; remove idle API keys."""
        now = self._now()
        if self.is_standalone:
            self._due.update(islice(self._leases, 1))  # probes if the database has recovered
        for key, lease in list(self._leases.items()):
            if lease.needs_refill(now):
                self._due.add(key)
            elif lease.is_removable(now):
                del self._leases[key]
                self._due.discard(key)
        self.is_standalone = self.is_standalone and bool(self._leases)  # without keys there is nothing to count locally

    async def _settle_batch(self, keys: Sequence[str]) -> None:
        now = self._now()
        requests = {key: self._leases[key].next_request(now) for key in keys}
        self._due.difference_update(keys)
        query = asyncio.ensure_future(
            self._request_tokens([_rate_request(key, self._leases[key], requests[key]) for key in keys])
        )
        try:
            # Not cancelled by `close`, which returns the tokens that this query was granted.
            with suppress(Exception):  # handled below
                await asyncio.shield(query)
        finally:
            await asyncio.wait({query})
            self._apply_result(query, {key: debit for key, (debit, _) in requests.items()})

    def _apply_result(self, query: asyncio.Future[Mapping[str, RateGrant]], debits: Mapping[str, float]) -> None:
        """Add the granted tokens of a finished query, or restore its debits if it failed."""
        if (exc := query.exception()) is not None:
            if not self.is_standalone:
                log.warning("database unavailable, rate limits are applied per node: %s", type(exc).__name__)
            self.is_standalone = True
            for key, debit in debits.items():
                self._leases[key].restore_debit(debit, self._now())
            return
        self.is_standalone = False
        for key, grant in query.result().items():
            self._leases[key].add_granted(grant.tokens, grant.wait_s, self._now())

    async def _request_tokens(self, requests: Sequence[RateRequest]) -> Mapping[str, RateGrant]:
        self.query_count += 1
        return await self._run_query(self._buckets.acquire(self._tenant, requests))

    async def _delete_old_buckets(self) -> None:
        if self._now() - self._cleaned_at >= CLEANUP_INTERVAL_S:
            self._cleaned_at = self._now()
            try:
                await self._run_query(self._buckets.delete_unused(self._tenant))
            except Exception as exc:  # no call depends on it
                log.warning("old rate buckets not deleted: %s", type(exc).__name__)


def _rate_request(key: str, lease: TokenLease, debit_and_tokens: tuple[float, int]) -> RateRequest:
    return RateRequest(key, lease.rate.calls, lease.rate.per_second, *debit_and_tokens)


def _split_batches(keys: Sequence[str], size: int) -> list[Sequence[str]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]


class TokenLease:
    """One API key's rate-limit tokens that this node holds, taken from the shared bucket.

    No I/O: `now` is an argument.
    """

    def __init__(self, rate: Rate, node_count: int, now: float) -> None:
        self.rate = rate
        self._node_count = max(1, node_count)
        self._tokens = 0.0
        self._credit = self._max_credit()
        self._debt = 0.0  # tokens spent on credit; negative: tokens to return
        self._used_since_request = 0  # since the last query
        self._requested_at = now
        self._requested = 0
        self._next_request_at = now  # earliest time of the next query
        self._filled_at = now
        self.used_at = now

    def take_token(self, now: float, *, standalone: bool) -> float:
        """Take a token for one call: return 0.0 if taken, or the seconds until one may be available.

        `standalone` means that the database is unavailable: then the node grants its share of the rate itself.
        """
        self.used_at = now
        if standalone:
            self._refill_credit(now)
        if self._tokens >= 1.0:
            self._tokens -= 1.0
        elif self._credit >= 1.0:
            self._credit -= 1.0
            self._debt += 1.0
        else:
            pause = 1.0 / self._rate_share() if standalone else EXPECTED_QUERY_S
            return max(self._next_request_at - now, pause)
        self._used_since_request += 1
        return 0.0

    def give_back(self) -> None:
        """Take back the token that `take_token` gave out last, because the call was not made.

        If it was given on credit, the debt stays too: it is debited, and the token can be used.
        """
        self._tokens += 1.0
        self._used_since_request -= 1

    def needs_refill(self, now: float) -> bool:
        """Return True if it is time to fetch tokens from the database or to return them."""
        if now < self._next_request_at:
            return False
        if now - self.used_at >= IDLE_AFTER_S:
            return self._tokens >= 1.0 or self._debt > 0
        return self._tokens < self._expected_demand(now) / 2 or self._debt > 0

    def is_removable(self, now: float) -> bool:
        """Return True if this lease can be removed: its API key is idle, with no tokens and no debt."""
        return (
            now - self.used_at >= IDLE_AFTER_S
            and now >= self._next_request_at
            and self._tokens < 1.0
            and self._debt <= 0
        )

    def take_final_debit(self) -> float:
        """Give up all tokens that this node still holds for the API key.

        Return how many to debit in the database; negative to return unused ones.
        """
        debit, self._tokens, self._debt = self._debt - math.floor(self._tokens), 0.0, 0.0
        return debit

    def next_request(self, now: float) -> tuple[float, int]:
        """Return (tokens to debit, tokens to request) for the next query of the database.

        The debit is for calls already made; a negative debit returns tokens.
        """
        if now - self.used_at >= IDLE_AFTER_S:
            debit, self._requested = self.take_final_debit(), 0
        else:
            debit, self._debt = self._debt, 0.0
            self._requested = min(max(1, math.ceil(self._expected_demand(now) - self._tokens)), self.rate.calls)
        self._used_since_request = 0
        self._requested_at = now
        return debit, self._requested

    def add_granted(self, granted: int, wait: float, now: float) -> None:
        """Add granted tokens; `wait` is the seconds until the bucket has another."""
        self._tokens += granted
        self._filled_at = now
        if granted >= self._requested:
            self._credit, self._next_request_at = self._max_credit(), now
        else:
            self._credit, self._next_request_at = 0.0, now + max(wait, MIN_REFILL_DELAY_S)

    def restore_debit(self, debit: float, now: float) -> None:
        """Add the debit of a failed query again, so it is sent with the next one."""
        self._debt = min(self._debt + debit, float(self.rate.calls))
        self._next_request_at = now + MIN_REFILL_DELAY_S

    def _expected_demand(self, now: float) -> float:
        """Return the tokens needed for the next `LEASE_AHEAD_S` seconds at the recent call rate."""
        return 1.0 + LEASE_AHEAD_S * max(0, self._used_since_request - 1) / max(
            MIN_DEMAND_WINDOW_S, now - self._requested_at
        )

    def _max_credit(self) -> float:
        return max(1.0, CREDIT_FRACTION * self.rate.calls / self._node_count)

    def _rate_share(self) -> float:
        return self.rate.per_second / self._node_count

    def _refill_credit(self, now: float) -> None:
        gained = (now - self._filled_at) * self._rate_share()
        self._filled_at = now
        self._credit = min(max(1.0, self.rate.calls / self._node_count), self._credit + gained)

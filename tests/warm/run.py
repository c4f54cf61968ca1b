"""Compare a warm gateway with cold ones, for generated sequences of requests.

python -m tests.warm.run --sequences 200000 --seed 1 --jobs 2

Each seed is one warm gateway. At the end, a sample of requests is compared with processes that are started for them.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.gateway.edge_lab import TOKEN
from tests.warm.lab import Answer, Connection, Lab, lab
from tests.warm.requests import Generator, Request

IN_USE = "request id already in use"  # another request of the session has it, and is still being answered
IN_USE_TRIES, IN_USE_S = 1000, 0.01
SESSIONS_EVERY = 50  # sequences after which sessions of other callers are opened


class Difference(NamedTuple):
    """A request that a warm gateway answered in another way than a cold one."""

    seed: int
    sequence: int
    label: str
    warm: Answer
    cold: Answer
    data: bytes
    before: tuple[str, ...]

    def __str__(self) -> str:
        facts = f"{self.label}\n  warm {self.warm}\n  cold {self.cold}\n  {self.data[:600]!r}"
        return f"seed {self.seed}, sequence {self.sequence}: {facts}\n  after " + "\n        ".join(self.before)


class Result(NamedTuple):
    differences: list[Difference]
    requests: int
    statuses: Counter[int]


async def compare(seed: int, sequences: int, folder: Path, most: int = 5) -> Result:
    """Send generated sequences to a warm gateway, and each of their requests to a cold one too."""
    rnd = random.Random(seed)
    found = Result([], 0, Counter())
    count = 0
    async with lab(folder, rnd) as at:
        sessions: dict[str, str] = {}
        generator = Generator(rnd, at.settings, sessions)
        for number in range(sequences):
            if number % SESSIONS_EVERY == 0:
                await open_sessions(at, sessions, rnd)
            history: list[str] = []
            connections: dict[int, Connection] = {}
            left = [generator.next() for _ in range(rnd.randint(2, 6))]
            while left:
                if rnd.random() < 0.1:
                    history.append(f"changed {at.settings.change(generator.recent_roles())}")
                    at.apply_settings()
                    left = [generator.again() if rnd.random() < 0.7 else request for request in left]
                batch, left = take_batch(left, rnd)
                for request, warm in await send(at, batch, connections, rnd):
                    cold = await at.cold_answer(request)
                    if not request.compares_body:
                        warm, cold = warm._replace(body=""), cold._replace(body="")
                    count += 1
                    found.statuses[cold.status] += 1
                    if warm != cold:
                        found.differences.append(
                            Difference(seed, number, request.label, warm, cold, request.data, tuple(history))
                        )
                        if len(found.differences) >= most:
                            return found._replace(requests=count)
                    history.append(f"{request.label}: {warm.status}")
            for connection in connections.values():
                connection.close()
    return found._replace(requests=count)


async def open_sessions(at: Lab, sessions: dict[str, str], rnd: random.Random) -> None:
    """Open a session for the owner and for two other callers."""
    sessions["local"] = await at.open_session(TOKEN)
    people = [role for role in ("alice", "bob") if role in at.settings.tokens]
    keys = [role for role in ("all", "admin", "both") if role in at.settings.tokens]
    for role in (*people, rnd.choice(keys)):
        sessions[role] = await at.open_session(at.settings.tokens[role])


def take_batch(left: list[Request], rnd: random.Random) -> tuple[list[Request], list[Request]]:
    """Return the requests to send at once, pipelined if there are several, and the rest."""
    size = rnd.randint(2, 4) if rnd.random() < 0.15 else 1
    return left[:size], left[size:]


async def send(
    at: Lab, batch: list[Request], connections: dict[int, Connection], rnd: random.Random
) -> list[tuple[Request, Answer]]:
    """Send requests to the warm gateway on one of two connections. Return those that were answered.

    A request that is refused closes its connection, so the pipelined ones behind it get no answer.
    """
    which = rnd.randrange(2)
    connection = connections.get(which)
    if connection is None or connection.is_closed:
        connection = connections[which] = Connection(at.warm)
    data = b"".join(request.data for request in batch)
    if rnd.random() < 0.4:
        for part in split(data, rnd):
            connection.send(part)
            await asyncio.sleep(0)
    else:
        connection.send(data)
    answered: list[tuple[Request, Answer]] = []
    for request in batch:
        answer = await connection.answer()
        if answer.status == 0 and (len(batch) > 1 or request.ends_connection):
            break
        if answer.status == 503:
            answer = await at.ask(at.warm, request.first)
        for _ in range(IN_USE_TRIES):
            if IN_USE not in answer.body:
                break
            await asyncio.sleep(IN_USE_S)
            answer = await at.ask(at.warm, request.first)
        answered.append((request, answer))
        if request.ends_connection or connection.is_closed:
            connection.close()
            break
    return answered


def split(data: bytes, rnd: random.Random) -> list[bytes]:
    """Split bytes at one to three places: often right behind a head, else anywhere."""
    heads = [place + 4 for place in range(len(data)) if data[place : place + 4] == b"\r\n\r\n"]
    places = {
        rnd.choice(heads) if heads and rnd.random() < 0.5 else rnd.randrange(1, len(data))
        for _ in range(rnd.randint(1, 3))
    }
    edges = [0, *sorted(places), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges) if begin < end]


def run_seed(seed: int, sequences: int) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(compare(seed, sequences, Path(folder)))


def main(arguments: list[str]) -> int:
    from tests.warm.processes import compare_processes  # it uses this module

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1, help="first seed; each seed is one warm gateway")
    parser.add_argument("--each", type=int, default=2_000, help="sequences of one seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--processes", type=int, default=200, help="requests that a new process answers too")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + -(-options.sequences // options.each))
    began, differences, requests, statuses = time.monotonic(), 0, 0, Counter[int]()
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for done, result in enumerate(pool.imap_unordered(partial(run_seed, sequences=options.each), seeds), 1):
            requests += result.requests
            statuses += result.statuses
            differences += len(result.differences)
            for each in result.differences:
                print(each, flush=True)
            print(f"{done * options.each} sequences, {requests} requests, {differences} differences", flush=True)
    print(f"seeds {seeds[0]} to {seeds[-1]}, {time.monotonic() - began:.0f} s, statuses {dict(statuses)}", flush=True)
    if options.processes:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(compare_processes(options.seed, options.processes, Path(folder)))
        for each in found:
            print(each)
        print(f"{options.processes} requests to processes started for them, {len(found)} differences")
        differences += len(found)
    print(f"{differences} differences")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

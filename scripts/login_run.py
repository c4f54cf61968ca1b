"""What tokens of an identity provider cost a call, and calls while the provider rotates its keys.

    python scripts/login_run.py [--rate 500] [--rotations 3] [--seconds 35]

The first part times the authentication of a request inside one process: with an API key and with a token, both
known, and with tokens that are new. The second part runs a real `toolway serve`, a provider on a socket, and clients
of both eras. The provider signs with a new key every `--seconds` (the gateway looks for unknown keys every 30 s at
most), and half of the clients log in again at that moment. Exit code 1 if a call fails, if fewer calls were made, or
if a known token costs more than the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not an installed package

from tests.gateway.edge_lab import TOKEN, Edge
from tests.gateway.load_clients import LoadClient, load_client
from tests.gateway.program import program
from tests.parts.identity.issuer import AUDIENCE, Issuer, guarded, public_jwk, rsa_key
from tests.parts.identity.test_process import published
from toolway.http.exchange import HttpRequest
from toolway.testing import fake_server

KNOWN_LIMIT_US = 2.0  # that a known token may cost more than a known API key
NEW_LIMIT_US = 150.0  # for the first request with a token, with elliptic curves; RSA is quicker
CLIENTS = 50


def known_request(token: str) -> HttpRequest:
    headers = {"host": "127.0.0.1", "authorization": f"Bearer {token}", "content-type": "application/json"}
    return HttpRequest("POST", "/mcp", "", headers, frozenset(), b"{}", "127.0.0.1")


def time_each(functions: list[Callable[[], object]], rounds: int, repeat: int) -> list[float]:
    """Return the median microseconds of each function. They run in turn, so other load affects all equally."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, taken in zip(functions, times, strict=True):
            began = time.perf_counter()
            for _ in range(repeat):
                function()
            taken.append((time.perf_counter() - began) / repeat * 1e6)
    return [statistics.median(each) for each in times]


def measure_new(found: Edge, make: Callable[[int], str], count: int = 200) -> float:
    """Return the median microseconds of the first request with a token."""
    requests = [known_request(make(number)) for number in range(count)]
    taken = []
    for request in requests:
        began = time.perf_counter()
        found.gateway.router.authenticate(request)
        taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)


async def measure_cost() -> bool:
    """Print what authentication costs; return True if it is within the limits."""
    issuer = Issuer()
    issuer.keys.append(public_jwk(rsa_key(), "rsa", alg="RS256"))
    with tempfile.TemporaryDirectory() as folder:
        async with guarded(Path(folder), issuer) as found:
            requests = [known_request(TOKEN), known_request(issuer.token())]
            ask = found.gateway.router.authenticate
            for request in requests:
                ask(request)
            key, token = time_each([lambda: ask(requests[0]), lambda: ask(requests[1])], 300, 1000)
            new = measure_new(found, lambda number: issuer.token(sub=f"person-{number}"))
            ec_key, issuer.key, issuer.kid = issuer.key, rsa_key(), "rsa"
            rsa = measure_new(found, lambda number: issuer.token({"alg": "RS256"}, sub=f"member-{number}"))
            issuer.key = ec_key
    added = token - key
    print(f"known head: API key {key:.2f} µs, token {token:.2f} µs: {added:+.2f} µs (limit {KNOWN_LIMIT_US:g} µs)")
    print(f"first request with a token: ES256 {new:.0f} µs (limit {NEW_LIMIT_US:g} µs), RS256 {rsa:.0f} µs")
    return token - key <= KNOWN_LIMIT_US and min(new, rsa) <= NEW_LIMIT_US


class Load:
    """Clients that call at a fixed rate together, with the tokens that they have."""

    def __init__(self, clients: list[LoadClient], rate: float) -> None:
        self.clients = clients
        self.interval = len(clients) / rate
        self.calls = 0
        self.slowest = 0.0
        self.failures: list[str] = []
        self.ends = False

    async def run(self) -> None:
        await asyncio.gather(*(self._call_steadily(number) for number in range(len(self.clients))))

    async def _call_steadily(self, number: int) -> None:
        loop, client = asyncio.get_running_loop(), self.clients[number]
        due = loop.time() + self.interval * number / len(self.clients)
        while not self.ends:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += self.interval
            began = loop.time()
            try:
                await client.call("fake__echo", {"text": "x"})
            except Exception as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}")
            self.calls += 1
            self.slowest = max(self.slowest, loop.time() - began)


async def rotate_under_load(rate: float, rotations: int, seconds: float) -> bool:
    """Print the calls a second and the failures while the keys change; return True if none failed."""
    issuer = Issuer()
    with tempfile.TemporaryDirectory() as folder:
        async with published(issuer) as url:
            settings = {"login": {"issuer": url, "audience": AUDIENCE}}
            servers = {"fake": fake_server(era="modern")}
            async with program(Path(folder) / "gateway", servers, gateway=settings, access={"eng": ["fake.*"]}) as run:
                clients = [
                    load_client(("modern", "legacy")[number % 2], run.port, issuer.token(sub=f"person-{number}"))
                    for number in range(CLIENTS)
                ]
                load = Load(clients, rate)
                task = asyncio.create_task(load.run())
                began = time.monotonic()
                await asyncio.sleep(2)
                for number in range(rotations):
                    issuer.now = time.time()
                    issuer.rotate(f"k{number + 2}")
                    for place in range(number % 2, CLIENTS, 2):
                        clients[place].fields["authorization"] = f"Bearer {issuer.token(sub=f'person-{place}')}"
                    print(f"rotated after {time.monotonic() - began:.0f} s and {load.calls} calls", flush=True)
                    await asyncio.sleep(seconds)
                load.ends = True
                await task
                taken = time.monotonic() - began
                for client in clients:
                    client.close()
                await run.stop()
    for failure in load.failures[:5]:
        print(f"  {failure}")
    made = load.calls / taken
    print(
        f"{load.calls} calls, {made:.0f}/s, {rotations} rotations, {len(load.failures)} failures, "
        f"slowest {load.slowest * 1000:.0f} ms, keys fetched {issuer.fetched.count(f'{issuer.url}/keys')} times"
    )
    return not load.failures and made >= 0.95 * rate


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500.0, help="calls a second")
    parser.add_argument("--rotations", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=35.0, help="from one rotation to the next")
    options = parser.parse_args()
    cheap = await measure_cost()
    whole = await rotate_under_load(options.rate, options.rotations, options.seconds)
    return int(not (cheap and whole))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

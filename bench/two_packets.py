"""What a call costs the gateway if its client sends head and body in two packets.

    python -m bench.two_packets

Prints CPU-µs per call of one client, alternating between both ways, and their ratio. Needs a C compiler.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import time

from bench import machine
from bench.install import build_tools
from bench.measure import Gateway, gateway, requests, servers, wait_until_ready
from bench.peers import get_peer
from bench.plan import Case, ServerGroup

CALLS, TURNS = 3000, 5
PAUSE_S = 0.0005  # between head and body, so the gateway reads them separately


def cost(one: Gateway, data: bytes, packets: int) -> float:
    """Return the CPU-µs per call of `CALLS` calls on one connection."""
    head, separator, body = data.partition(b"\r\n\r\n")
    before = one.used().cpu
    with socket.create_connection(("127.0.0.1", one.launch.endpoint.port), 60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(CALLS):
            connection.sendall(head + separator if packets == 2 else data)
            time.sleep(PAUSE_S)  # in both modes, so the gateway is equally idle
            if packets == 2:
                connection.sendall(body)
            response = http.client.HTTPResponse(connection)
            response.begin()
            if b'"result"' not in response.read():
                raise RuntimeError("a call failed")
    return (one.used().cpu - before) / CALLS * 1e6


def main() -> None:
    build_tools()
    machine.leave_gateway_core()
    with servers(ServerGroup("http")) as upstreams, gateway(get_peer("toolway"), upstreams) as one:
        case = Case("echo", "modern", 1)
        wait_until_ready(one, case)
        data = requests(one, case, tuple(each.name for each in upstreams))[0]
        found = [(cost(one, data, 1), cost(one, data, 2)) for _ in range(TURNS)]
    for packets, costs in zip((1, 2), zip(*found, strict=True), strict=True):
        print(f"{packets} packet{'s' * (packets > 1)} {statistics.median(costs):6.0f} CPU-µs per call")
    print(f"ratio {statistics.median(two / one for one, two in found):.2f}")


if __name__ == "__main__":
    main()

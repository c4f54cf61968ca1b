"""The forwarder inside the `strict` sandbox, which connects a local port to the proxy outside.

It is run by path, with the standard library only: `python -I -S forwarder.py SOCKET COMMAND ARG…`. It starts a
forwarding process, then becomes the command. Programs find the port in the usual proxy variables.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading

assert sys.platform != "win32"


def main() -> None:
    path, command = sys.argv[1], sys.argv[2:]
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if os.fork() == 0:
        for fd in (0, 1):
            os.close(fd)  # the pipes of the server end with the server
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=_forward, args=(accepted, path), daemon=True).start()
    listener.close()
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    os.environ.update(dict.fromkeys(names, address), NODE_USE_ENV_PROXY="1", NO_PROXY="", no_proxy="")
    os.execvp(command[0], command)


def _forward(accepted: socket.socket, path: str) -> None:
    with accepted, socket.socket(socket.AF_UNIX) as outside:
        try:
            outside.connect(path)
            pairs = {accepted: outside, outside: accepted}
            while pairs:
                for ready in select.select(list(pairs), [], [])[0]:
                    data = ready.recv(65536)
                    if data:
                        pairs[ready].sendall(data)
                        continue
                    pairs.pop(ready).shutdown(socket.SHUT_WR)
        except OSError:
            return


if __name__ == "__main__":
    main()

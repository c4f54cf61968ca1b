"""Which local sockets have nobody at their other end. The kernel is asked (sock_diag(7)); it tells everybody.

Programs on Node.js, and so most clients, give their servers a socket as stdin where others give a pipe.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Final

_NETLINK: Final = 16  # address family
_SOCK_DIAG: Final = 4  # protocol
_BY_FAMILY: Final = 20  # type of message
_REQUEST_DUMP: Final = 0x301
_DONE, _ERROR = 3, 2
_SHUTDOWN: Final = 6  # attribute: which directions are closed
_BOTH: Final = 3  # what it says when the other end was closed
_HEAD: Final = struct.Struct("=IHHII")
_ASK: Final = struct.Struct("=BBHIIIII")
_TOLD: Final = struct.Struct("=BBBBIII")
_ATTRIBUTE: Final = struct.Struct("=HH")


def abandoned() -> set[str]:
    """The inodes of all local sockets whose other end is closed; none where the kernel does not say."""
    with contextlib.suppress(OSError), socket.socket(_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        ask = _ASK.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0, 0, 0)
        kernel.send(_HEAD.pack(_HEAD.size + len(ask), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask)
        return {str(inode) for inode, closed in _answers(kernel) if closed == _BOTH}
    return set()


def _answers(kernel: socket.socket) -> Iterator[tuple[int, int]]:
    """Inode and closed directions of every socket."""
    while True:
        data = kernel.recv(256 * 1024)
        while len(data) >= _HEAD.size:
            length, kind, _, _, _ = _HEAD.unpack_from(data)
            if kind in (_DONE, _ERROR) or length < _HEAD.size:
                return
            body, data = data[_HEAD.size : length], data[(length + 3) & ~3 :]
            yield _TOLD.unpack_from(body)[4], _closed(body[_TOLD.size :])


def _closed(attributes: bytes) -> int:
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _SHUTDOWN:
            return attributes[_ATTRIBUTE.size]
        if length < _ATTRIBUTE.size:
            break
        attributes = attributes[(length + 3) & ~3 :]
    return 0

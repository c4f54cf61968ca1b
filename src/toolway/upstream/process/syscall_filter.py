"""System call filter (seccomp) for what Landlock does not control: sockets, file owners and modes.

Loaded by the reaper, so it uses the standard library only. It belongs to the sandbox `strict` without bubblewrap.
Without a granted network no socket can be created, because Landlock controls neither UDP nor the connection to a Unix
socket, and such a socket may start programs outside (D-Bus, Docker). Pairs of connected sockets stay possible.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
CAPABILITY_VERSION_3 = 0x20080522
SECCOMP_MODE_FILTER = 2
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of classic BPF
NUMBER_OFFSET, ARCHITECTURE_OFFSET, FIRST_ARGUMENT_OFFSET = 0, 4, 16
X32_BIT = 0x40000000  # a second numbering of x86-64
AF_INET, AF_INET6, AF_NETLINK = 2, 10, 16
IO_URING_SETUP = 425  # it creates sockets without the socket system call
CLONE3 = 435
CLONE_NEWNS = 0x20000
NEW_CALLS = (452, 463, 466)  # fchmodat2, setxattrat, removexattrat: the same on all architectures
#: By machine: its number for seccomp, `socket`, and what is refused: kernel keys; owner, mode and attributes by path.
MACHINES = {
    "x86_64": (0xC000003E, 41, (248, 249, 250, 90, 92, 94, 260, 268, 188, 189, 197, 198)),
    "aarch64": (0xC00000B7, 198, (217, 218, 219, 53, 54, 5, 6, 14, 15)),
}
#: By machine, for its own programs and those of 32 bits: number for seccomp, `unshare`, `clone`.
NAMESPACE_CALLS = {
    "x86_64": ((0xC000003E, 272, 56), (0x40000003, 310, 120)),
    "aarch64": ((0xC00000B7, 97, 220), (0x40000028, 337, 120)),
}


def is_supported() -> bool:
    """Return True if there is a filter for the processor architecture of this machine."""
    return sys.platform != "win32" and os.uname().machine in MACHINES


def build_filter(machine: str, with_network: bool) -> bytes:
    """Return the filter as a seccomp program. `with_network` allows internet sockets."""
    architecture, socket_call, refused = MACHINES[machine]
    families = (AF_INET, AF_INET6, AF_NETLINK) if with_network else ()
    program: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_OFFSET),
        (JUMP_AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
    for number in (IO_URING_SETUP, *NEW_CALLS, *refused):
        code = errno.ENOSYS if number == IO_URING_SETUP else errno.EPERM
        program += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | code)]
    program += [(JUMP_EQUAL, 1, 0, socket_call), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, FIRST_ARGUMENT_OFFSET)]
    for family in families:
        program += [(JUMP_EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    program += [(RETURN, 0, 0, ERRNO | errno.EACCES)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def build_mount_filter(machine: str) -> bytes:
    """Return a seccomp program that blocks mount namespaces but no others.

    Hidden folders stay hidden in a nested mount namespace. But a process that drops all mounts there (with
    `pivot_root`) could rename the folders above them and put new ones in their place.
    """
    program: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, ARCHITECTURE_OFFSET)]
    for architecture, unshare, clone in NAMESPACE_CALLS[machine]:
        section = [
            (LOAD, 0, 0, NUMBER_OFFSET),
            (JUMP_AT_LEAST, 0, 1, X32_BIT),
            (RETURN, 0, 0, ERRNO | errno.ENOSYS),
            (JUMP_EQUAL, 0, 1, CLONE3),  # its flags are in memory; all libraries use `clone` then
            (RETURN, 0, 0, ERRNO | errno.ENOSYS),
            (JUMP_EQUAL, 2, 0, unshare),
            (JUMP_EQUAL, 1, 0, clone),
            (RETURN, 0, 0, ALLOW),
            (LOAD, 0, 0, FIRST_ARGUMENT_OFFSET),
            (JUMP_ANY_BIT, 0, 1, CLONE_NEWNS),
            (RETURN, 0, 0, ERRNO | errno.EPERM),
            (RETURN, 0, 0, ALLOW),
        ]
        program += [(JUMP_EQUAL, 0, len(section), architecture), *section]
    program += [(RETURN, 0, 0, KILL_PROCESS)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def drop_capabilities() -> None:
    """Give up all capabilities of this process and its descendants: root then only owns its own files."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails without privileges: then there are none
    head, data = struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)
    if libc.capset(ctypes.c_char_p(head), ctypes.c_char_p(data)):
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def install(with_network: bool) -> None:
    """Install the filter in this process and its descendants. Raises `OSError` if the kernel refuses.

    The process must have given up new privileges before, as `landlock.allow_only` does.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "only Linux has filters of system calls")
    import ctypes  # slow to import

    program = build_filter(os.uname().machine, with_network)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(head), 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")

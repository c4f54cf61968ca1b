"""With real processes: what is left over, and who has a port."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from toolway.config.schema import Server
from toolway.doctor import orphans
from toolway.upstream.process import reaper

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


@pytest.fixture
def started():
    """Starts processes, and ends them with the test."""
    running = []

    def start(*argv, **more):
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, **more)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


OVER_PIPE = "import subprocess as s, sys; print(s.Popen(sys.argv[1:], stdin=s.PIPE, stdout=s.DEVNULL).pid)"
# As Node.js does it, and with it most clients.
OVER_SOCKET = (
    "import socket, subprocess as s, sys; a, b = socket.socketpair();"
    "print(s.Popen(sys.argv[1:], stdin=a, stdout=s.DEVNULL).pid)"
)


def leave_behind(*argv, leave=OVER_PIPE, **environ):
    """Start a process, and be gone."""
    words = [sys.executable, "-c", leave, *argv]
    # What is left behind would hold a pipe for stderr open.
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **environ})
    return int(done.stdout)


def unique(tmp_path):
    path = tmp_path / "server.py"
    path.write_text(SLEEP)
    return (sys.executable, str(path), "--token", "tok-1234567890")


def server_of(argv):
    return {"acme": Server(command=argv[0], args=tuple(argv[1:]))}


def is_alive(pid):
    return bool(orphans.command_line(pid))


def test_server_with_open_pipe_is_not_an_orphan(tmp_path, started):
    argv = unique(tmp_path)
    started(*argv)
    assert orphans.find_orphans(server_of(argv)) == []


def test_server_with_open_socket_is_not_an_orphan(tmp_path):
    argv = unique(tmp_path)
    ours, theirs = socket.socketpair()
    with ours, subprocess.Popen(argv, stdin=theirs.fileno()) as process:
        theirs.close()
        try:
            assert orphans.find_orphans(server_of(argv)) == []
            ours.shutdown(socket.SHUT_WR)  # it may still answer
            assert orphans.find_orphans(server_of(argv)) == []
        finally:
            process.kill()


@pytest.mark.parametrize("leave", [OVER_PIPE, OVER_SOCKET], ids=["pipe", "socket"])
def test_orphan_is_found_and_killed(tmp_path, leave):
    argv = unique(tmp_path)
    pid = leave_behind(*argv, leave=leave)
    try:
        [found] = orphans.find_orphans(server_of(argv))
        assert (found.pid, found.server) == (pid, "acme")
        assert "tok-1234567890" not in found.command
        assert found.seconds < 60
        assert found.apply() == f"ended process {pid}"
        assert not is_alive(pid)
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_npx_orphan_is_killed_with_its_children():
    """npx calls itself `npm exec …`, and what it runs stands below it."""
    title = f"npm exec @acme/server --root /srv/{os.getpid()}"
    leave = (
        "import subprocess as s, sys; p = s.Popen(sys.argv[1:], executable='/bin/sh', stdin=s.PIPE, stdout=s.DEVNULL);"
        "p.stdin.write(b'sleep 60 & wait\\n'); p.stdin.flush(); print(p.pid)"
    )
    pid = leave_behind(title, leave=leave)
    end = time.monotonic() + 60
    while not (below := orphans.descendants(pid)) and time.monotonic() < end:
        time.sleep(0.02)
    server = Server(command="/opt/node/bin/npx", args=("-y", "@acme/server", "--root", f"/srv/{os.getpid()}"))
    [found] = orphans.find_orphans({"acme": server})
    assert found.pid == pid
    found.apply()
    assert [each for each in (pid, *below) if is_alive(each)] == []


def test_reused_process_id_is_left_alone(tmp_path, started):
    process = started(*unique(tmp_path))
    stranger = orphans.Orphan(process.pid, "1", "acme", "x", 0, 0.0)
    stranger.apply()
    assert process.poll() is None


def test_process_of_another_command_is_ignored(tmp_path):
    pid = leave_behind(*unique(tmp_path))
    try:
        assert orphans.find_orphans({"other": Server(command="other-server")}) == []
    finally:
        os.kill(pid, signal.SIGKILL)


def test_tagged_process_without_reaper_is_an_orphan(tmp_path):
    pid = leave_behind(*unique(tmp_path), **{reaper.TAG_VARIABLE: "of-a-test"})
    try:
        assert pid in [orphan.pid for orphan in orphans.find_orphans({})]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_process_on_port_is_found(started):
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    hold = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"
    process = started(sys.executable, "-c", hold)
    end = time.monotonic() + 60
    while (found := orphans.process_on_port(port)) is None and time.monotonic() < end:
        time.sleep(0.02)
    assert found is not None
    assert found[0] == process.pid
    assert orphans.listening_ports(process.pid) == [port]
    assert orphans.process_on_port(1) is None


def test_child_age_is_measured_from_its_parent(started):
    process = started("/bin/sh", "-c", "sleep 0.3; sleep 60 & wait")
    end = time.monotonic() + 60
    while not orphans.descendants(process.pid) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    [child] = orphans.descendants(process.pid)
    age = orphans.start_interval(process.pid, child)
    os.kill(child, signal.SIGKILL)
    assert age is not None
    assert 0.2 <= age < 5

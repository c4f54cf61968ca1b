"""Making an edit: all or nothing, whatever ends the writer; no one else's change is lost."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolway.config.editing import document
from toolway.config.editing.document import Edit, apply_edit
from toolway.errors import ConfigError

OLD, NEW = b'{"old": "' + 5000 * b"o" + b'"}\n', b'{"new": "' + 9000 * b"n" + b'"}\n'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "there" / "mcp.json"
    path.parent.mkdir()
    path.write_bytes(OLD)
    return path


def beside(path):
    return sorted(each.name for each in path.parent.iterdir() if each != path)


def test_edit_is_written_and_backup_is_kept(file, tmp_path):
    copy = apply_edit(Edit(file, OLD, NEW), tmp_path / "kept")
    assert copy is not None
    assert file.read_bytes() == NEW
    assert copy.read_bytes() == OLD
    assert beside(file) == []


def test_concurrently_changed_file_is_not_overwritten(file, tmp_path):
    edit = Edit(file, OLD, NEW)
    file.write_bytes(b"theirs")
    with pytest.raises(ConfigError) as caught:
        apply_edit(edit, tmp_path / "kept")
    assert caught.value.code == "E-EDIT-CHANGED"
    assert file.read_bytes() == b"theirs"
    assert not (tmp_path / "kept").exists()


def test_concurrently_created_file_is_not_overwritten(file, tmp_path):
    with pytest.raises(ConfigError, match="changed by another program"):
        apply_edit(Edit(file, None, NEW), tmp_path / "kept")
    assert file.read_bytes() == OLD


def test_new_file_is_private_and_its_folder_is_created(tmp_path):
    path = tmp_path / "a" / "b" / "mcp.json"
    assert apply_edit(Edit(path, None, NEW), tmp_path / "kept") is None
    assert path.read_bytes() == NEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o400])
def test_file_mode_is_kept(file, mode, tmp_path):
    file.chmod(mode)
    apply_edit(Edit(file, OLD, NEW), tmp_path / "kept")
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_backups_are_private(file, tmp_path):
    file.chmod(0o644)
    copy = apply_edit(Edit(file, OLD, NEW), tmp_path / "kept")
    assert copy is not None
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_symlink_stays_a_symlink(file, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(file)
    apply_edit(Edit(link, OLD, NEW), tmp_path / "kept")
    assert link.is_symlink()
    assert file.read_bytes() == NEW


def test_edit_without_changes_writes_nothing(file, tmp_path):
    before = file.stat().st_mtime_ns
    assert apply_edit(Edit(file, OLD, OLD), tmp_path / "kept") is None
    assert file.stat().st_mtime_ns == before
    assert not (tmp_path / "kept").exists()


def test_leftover_of_killed_writer_is_removed(file, tmp_path):
    left = file.with_name(".mcp.json.4711.toolway-new")
    left.write_bytes(NEW[:100])
    other = file.with_name(".other.json.4711.toolway-new")
    other.write_bytes(b"")
    apply_edit(Edit(file, OLD, NEW), tmp_path / "kept")
    assert beside(file) == [other.name]


def test_unwritable_file_is_reported_with_reason(tmp_path):
    path = tmp_path / "plain" / "mcp.json"
    (tmp_path / "plain").write_text("a file where a folder should be")
    with pytest.raises(ConfigError) as caught:
        apply_edit(Edit(path, None, NEW), tmp_path / "kept")
    assert caught.value.code == "E-EDIT-WRITE"
    assert "nothing was changed" in caught.value.detail


def test_full_disk_leaves_old_file_and_no_leftover(file, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    kept = tmp_path / "kept"
    document.save_backup(file, b"earlier", kept)
    monkeypatch.setattr("toolway.config.editing.document.os.fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        apply_edit(Edit(file, OLD, NEW), kept)
    assert file.read_bytes() == OLD
    assert beside(file) == []


def test_newest_backups_are_kept_up_to_limit(file, tmp_path):
    for number in range(document.MAX_BACKUPS + 5):
        document.save_backup(file, str(number).encode(), tmp_path)
    found = document.list_backups(file, tmp_path)
    assert len(found) == document.MAX_BACKUPS
    assert [each.read() for each in found[:2]] == [
        str(document.MAX_BACKUPS + 4).encode(),
        str(document.MAX_BACKUPS + 3).encode(),
    ]
    assert found[0].created > found[1].created


def test_diff_masks_secrets():
    edit = Edit(
        Path("f"), b'{"TOKEN": "s\\u00e9cret-1"}\n', b'{"TOKEN": "s\\u00e9cret-1", "x": 1}\n', frozenset({"sécret-1"})
    )
    assert edit.diff() == '--- f\n+++ f\n@@ -1 +1 @@\n-{"TOKEN": "***"}\n+{"TOKEN": "***", "x": 1}'


# -- whatever ends the writer ------------------------------------------------------------------------------------------

KILLED_AT_A_LINE = """
import os, shutil, sys
from pathlib import Path
from toolway.config.editing import document

path, kept = Path(sys.argv[1]), Path(sys.argv[2])
old, new = Path(sys.argv[3]).read_bytes(), Path(sys.argv[4]).read_bytes()

def steps_of(count):
    # A fork of us makes the edit and is gone after so many lines of our code, as if by SIGKILL: nothing is cleaned up.
    child = os.fork()
    if child == 0:
        left = [count]
        def trace(frame, event, arg):
            if frame.f_code.co_filename != document.__file__:
                return None
            if event == "line":
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), 9)
            return trace
        sys.settrace(trace)
        document.apply_edit(document.Edit(path, old, new), kept)
        sys.settrace(None)
        os._exit(0)
    return os.waitpid(child, 0)[1]

count = 0
while True:
    status = steps_of(count)
    now = path.read_bytes()
    print(count, "old" if now == old else "new" if now == new else "TORN", flush=True)
    if status == 0:
        break
    copies = [copy.read_bytes() for copy in kept.glob("*/*.bak")]
    if now == new and copies != [old]:
        print(count, "UNKEPT")
    path.write_bytes(old)
    shutil.rmtree(kept, ignore_errors=True)
    count += 1
"""


def test_writer_killed_at_any_line_leaves_old_or_new_file(file, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(OLD)
    new.write_bytes(NEW)
    words = [sys.executable, "-c", KILLED_AT_A_LINE, str(file), str(tmp_path / "kept"), str(old), str(new)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    states = [line.split()[1] for line in done.stdout.splitlines()]
    assert len(states) > 40  # it was really killed at each of them
    assert set(states) == {"old", "new"}
    assert states == sorted(states, reverse=True)  # once it is the new one, it stays the new one
    assert beside(file) == []


WRITING = """
import sys, itertools
from pathlib import Path
from toolway.config.editing.document import Edit, apply_edit

path = Path(sys.argv[1])
def content(number):
    return (f"{number}:" + "x" * (200_000 + number % 7 * 10_000) + f":{number}").encode()
print("ready", flush=True)
for number in itertools.count(1):
    apply_edit(Edit(path, path.read_bytes(), content(number)), Path(sys.argv[2]))
"""


def test_writer_killed_at_any_time_leaves_intact_file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0::0")
    numbers = set()
    for moment in range(12):
        words = [sys.executable, "-c", WRITING, str(path), str(tmp_path / "kept")]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            written, limit = path.stat().st_ino, time.monotonic() + 60
            while path.stat().st_ino == written and time.monotonic() < limit:
                time.sleep(0.001)  # a busy machine may not have begun to write
            time.sleep(moment * 0.0071)  # no event tells a moment in the midst of a write
            process.send_signal(signal.SIGKILL)
        number, _, rest = path.read_bytes().partition(b":")
        numbers.add(int(number))
        assert rest.endswith(b":" + number)
        assert set(rest[: -len(number) - 1]) <= {ord("x")}
    assert len(numbers) > 2  # it was really killed while it wrote


def test_concurrent_writers_keep_each_others_changes(tmp_path):
    """Each adds a line a hundred times, and begins anew when the other was faster."""
    path = tmp_path / "f"
    path.write_bytes(b"")
    program = f"""
import sys
from pathlib import Path
from toolway.config.editing.document import Edit, apply_edit
from toolway.errors import ConfigError
path = Path({str(path)!r})
for number in range(100):
    while True:
        now = path.read_bytes()
        try:
            line = f"{{sys.argv[1]}} {{number}}\\n".encode()
            apply_edit(Edit(path, now, now + line), Path({str(tmp_path / "kept")!r}))
            break
        except ConfigError as exc:
            assert exc.code == "E-EDIT-CHANGED", exc
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "ab"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {number}" for name in "ab" for number in range(100))


def test_root_keeps_file_owner(file, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can write for others")
    os.chown(file, 12345, 12345)
    apply_edit(Edit(file, OLD, NEW), tmp_path / "kept")
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12345)

"""Run folders: created exclusively, written whole, with a status that outlives any way of ending.

runs/<command>/<UTC time>-<name>-<id>/ holds config.yaml, overrides.txt, env.json, git.json, status.json, metrics.jsonl,
result.json, rows.csv and figures/.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from plsh_cli.errors import MessageError, UserError

STATES = ("running", "done", "failed", "killed")
#: Locked for as long as a process works in a run folder.
LOCK = ".lock"
#: So many lists and dictionaries lie in one another at most in a file that is read.
MOST_NESTED = 64
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. All writers replace a whole file at once, except the append-only metrics.jsonl."""

    path: Path

    @classmethod
    def create(cls, out: str, command: str, name: str, fill: Callable[[RunFolder], None]) -> RunFolder:
        """A new folder holding what `fill` writes into it; nothing stays behind where that fails.

        Raises UserError where `out` cannot be written (read-only, full, not a folder).
        """
        parent = Path(os.path.expanduser(out)) / command
        with _explained(out):
            parent.mkdir(parents=True, exist_ok=True)
            folder = cls(_make_exclusive(parent, name))
            try:
                fill(folder)
            except BaseException:
                shutil.rmtree(folder.path, ignore_errors=True)
                raise
        return folder

    def write_text(self, name: str, text: str) -> Path:
        """Write a UTF-8 file whole: into a temporary file beside it, flushed to disk, then renamed."""
        return self.write(name, lambda handle: handle.write(text.encode()))

    def write_json(self, name: str, value: object) -> Path:
        """Write strict JSON: what is not finite becomes null."""
        return self.write_text(name, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")

    def write_csv(self, name: str, rows: Sequence[Mapping[str, object]]) -> Path:
        """Write flat records as CSV; the columns are the keys of all of them in order."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(finite(list(rows)))
        return self.write_text(name, text.getvalue())

    def write(self, name: str, writer: Callable[[IO[bytes]], object]) -> Path:
        """Let `writer` fill a temporary binary file and rename it to `name` when it is complete."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as handle:
                writer(handle)
                handle.flush()
                os.fsync(handle.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return target

    def append_line(self, name: str, record: Mapping[str, object]) -> None:
        """Append one JSON record as one write, so that a reader never sees half a line of a finished write."""
        line = (json.dumps(finite(dict(record)), allow_nan=False) + "\n").encode()
        with open(self.path / name, "ab", buffering=0) as handle:
            before = handle.seek(0, os.SEEK_END)
            if handle.write(line) != len(line):
                handle.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Within the body no other process can claim this folder; however this one ends, the claim ends with it.

        Raises MessageError where another process has claimed it.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise MessageError(f"{self.path.name} is still running, or being resumed, in another process") from None
        try:
            yield
        finally:
            lock.release()

    def set_status(self, state: str, reason: str | None = None, **facts: object) -> None:
        """Record the state (running | done | failed | killed), why, and any further facts."""
        assert state in STATES
        status = self.status() or {}
        status |= {"state": state, "reason": reason, **facts}
        status["started" if state == "running" else "ended"] = now()
        if state == "running":
            status.pop("ended", None)  # of a run that is resumed
        try:
            self.write_json("status.json", status)
        except OSError:
            # A full disk: the old file's own space still takes the new state.
            with open(self.path / "status.json", "r+b") as handle:
                handle.write((json.dumps(finite(status)) + "\n").encode())
                handle.truncate()

    def status(self, mine: bool = False) -> dict[str, Any] | None:
        """status.json, with state "killed" where its process is gone without having said so; None where unreadable.

        Whoever holds the folder's claim lives, also where its process cannot be seen from here, as in another
        container. mine: this process holds it.
        """
        status = read_json(self.path / "status.json")
        if status and status.get("state") == "running" and not _alive(status) and (mine or not self._held()):
            status |= {"state": "killed", "reason": "the process ended without a word (kill -9, power cut or crash)"}
        return status

    def _held(self) -> bool:
        """Whether some process has claimed this folder."""
        from filelock import FileLock, Timeout

        if not (self.path / LOCK).is_file():
            return False
        try:
            with FileLock(self.path / LOCK, timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            return False


def process_facts() -> dict[str, object]:
    """What identifies this process later: host, pid and when the pid started (clock ticks since boot, Linux only)."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "pid_started": _pid_started(os.getpid())}


def find(spec: str, out: str) -> RunFolder:
    """The run folder that `spec` means: a path, a folder name under `out`, or a unique part of one.

    Raises MessageError where there is none or more than one.
    """
    direct = Path(spec)
    if (direct / "config.yaml").is_file():
        return RunFolder(direct)
    names = [run for run in every(out) if spec in run.path.name] if direct.name == spec else []
    if len(names) == 1:
        return names[0]
    if not names:
        raise MessageError(f"no run {spec!r}: give a run folder, or a part of the name of one under {out}/")
    shown = ", ".join(run.path.name for run in names[:5])
    raise MessageError(
        f"{spec!r} fits {len(names)} runs ({shown}{', ...' if len(names) > 5 else ''}); give more of the name"
    )


def every(out: str, command: str = "*") -> Iterator[RunFolder]:
    """All run folders under `out`, oldest first within each command."""
    for config in sorted(Path(os.path.expanduser(out)).glob(f"{command}/*/config.yaml")):
        yield RunFolder(config.parent)


def finished(out: str, command: str, config_hash: str) -> RunFolder | None:
    """The newest finished run of this command with this config hash whose result is there, or None."""
    for run in reversed(list(every(out, command))):
        status = run.status()
        if not status or status.get("state") != "done" or status.get("config_hash") != config_hash:
            continue
        if isinstance((read_json(run.path / "result.json") or {}).get("rows"), list):
            return run
    return None


def finite(value: Any) -> Any:
    """The value with every NaN and infinity replaced by None, and numpy scalars by Python's."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (bool, int, float, str)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none, it cannot be read, or it is nested deeper than any run's."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        text = path.read_bytes()
        value = json.loads(text.decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or (_nesting(text) > MOST_NESTED and nested(value)):
        return None
    return value


def nested(value: list[Any] | dict[Any, Any]) -> bool:
    """Whether lists and dictionaries lie in one another more than MOST_NESTED deep."""
    level = [value]
    for _ in range(MOST_NESTED):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, (list, dict))
        ]
    return bool(level)


def _nesting(text: bytes) -> int:
    """How deep brackets are nested, counting those in strings too; quick for files of any size."""
    import numpy as np

    brackets = np.frombuffer(text.translate(None, _NO_BRACKETS), dtype=np.uint8)
    return int(np.cumsum(np.where((brackets == 0x5B) | (brackets == 0x7B), 1, -1)).max(initial=0))


def now() -> str:
    """The time now in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _make_exclusive(parent: Path, name: str) -> Path:
    while True:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = parent / f"{stamp}-{name}-{secrets.token_hex(3)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


@contextmanager
def _explained(out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            "out", out, f"must be a folder that can be written ({error.strerror or error})", "--out or out=..."
        ) from None


def _alive(status: Mapping[str, object]) -> bool:
    if status.get("host") != socket.gethostname():
        return True  # another machine's process cannot be checked from here
    pid = status.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    state, begun = _proc(pid)
    if state in ("Z", "X"):
        return False  # it has ended, and nobody has asked after it
    started = status.get("pid_started")
    return started is None or started == begun


def _pid_started(pid: int) -> int | None:
    return _proc(pid)[1]


def _proc(pid: int) -> tuple[str | None, int | None]:
    """The state of a process, and when it started in clock ticks since boot; None where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None, None

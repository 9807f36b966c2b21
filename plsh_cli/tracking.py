"""Where a run's metrics go: metrics.jsonl always, and Weights & Biases offline, online or not at all."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plsh_cli.config.schema.sections import Logger
from plsh_cli.errors import MessageError
from plsh_cli.rundir import RunFolder, finite, now, read_json

_REACH_SECONDS = 4.0
_INIT_SECONDS = 7.0
_SEGMENTS = "wandb.json"
_STAGING: set[str] = set()
_HINT = "or use logger.mode=offline (the default; sync later) or logger.mode=disabled"


class Tracker:
    """One run's metrics. Use `open`; `finish` must be called once, also after an error."""

    def __init__(self, folder: RunFolder, wandb_run: Any, mode: str) -> None:
        self._folder, self._wandb, self.mode = folder, wandb_run, mode
        self._begin = time.monotonic()
        self._step = 0

    @classmethod
    def open(
        cls, folder: RunFolder, logger: Logger, config: Mapping[str, object], command: str, *, resume: bool = False
    ) -> Tracker:
        """Start tracking. Raises MessageError where an online run cannot be started within seconds.

        resume: the folder's earlier W&B run goes on, where W&B is online; offline it gets a second one beside it, in
        the same group, whose configuration names the first (`resumed_from`): an offline run cannot be reopened.
        """
        if logger.mode == "disabled":
            return cls(folder, None, logger.mode)
        import wandb

        _keep_staging_in(folder)
        first = (read_json(folder.path / _SEGMENTS) or {}).get("ids") if resume else None
        link = _link(logger, first, config)
        try:
            settings = wandb.Settings(console="off", silent=True, init_timeout=_INIT_SECONDS)
            run = wandb.init(
                project=logger.project,
                entity=logger.entity,
                group=link.group,
                tags=list(logger.tags) or None,
                job_type=command,
                id=link.id,
                resume=link.resume,
                name=folder.path.name,
                dir=str(folder.path.resolve()),
                mode=logger.mode,
                config=finite(link.config),
                reinit="create_new",
                settings=settings,
            )
        except (wandb.Error, OSError, TimeoutError, ValueError) as error:
            raise MessageError(
                f"logger.mode={logger.mode}: W&B did not start a run ({_one_line(error)}); {_HINT}"
            ) from None
        folder.write_json(_SEGMENTS, {"ids": list(dict.fromkeys([*(first or []), link.id]))})
        return cls(folder, run, logger.mode)

    @property
    def segment_of(self) -> str | None:
        """The id of the earlier offline W&B run that this one is linked to, None where it stands alone."""
        return None if self._wandb is None else self._wandb.config.get("resumed_from")

    def rewind(self, step: int) -> None:
        """Forget what metrics.jsonl has beyond a step: a resumed run does those steps again."""
        kept = []
        for line in (self._folder.path / "metrics.jsonl").read_bytes().splitlines(keepends=True):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the process was killed in the middle of this line
            if record.get("step", 0) <= step:
                kept.append(line)
        self._folder.write("metrics.jsonl", lambda handle: handle.writelines(kept))
        self._step = step

    def log(self, metrics: Mapping[str, object], step: int | None = None) -> None:
        """Record one set of metrics as this step, by default the next one. Numbers and text only."""
        self._step = self._step + 1 if step is None else step
        seconds = round(time.monotonic() - self._begin, 3)
        self._folder.append_line("metrics.jsonl", {"step": self._step, "time": now(), "seconds": seconds, **metrics})
        if self._wandb is not None:
            self._wandb.log(
                {key: value for key, value in finite(dict(metrics)).items() if value is not None}, step=self._step
            )

    def table(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Send flat records to W&B as a table."""
        if self._wandb is None or not rows:
            return
        import wandb

        columns = list(dict.fromkeys(key for row in rows for key in row))
        data = [[finite(row.get(column)) for column in columns] for row in rows]
        self._wandb.log({name: wandb.Table(columns=columns, data=data, allow_mixed_types=True)})

    def figures(self, files: Sequence[Path]) -> None:
        """Send the PNG files among `files` to W&B as images."""
        if self._wandb is None:
            return
        import wandb

        images = {f"figures/{file.stem}": wandb.Image(str(file)) for file in files if file.suffix == ".png"}
        if images:
            self._wandb.log(images)

    def summary(self, values: Mapping[str, object]) -> None:
        """Set the W&B run's summary."""
        if self._wandb is not None:
            self._wandb.summary.update(finite(dict(values)))

    def finish(self, exit_code: int) -> str | None:
        """Close the W&B run; for an offline run, the command that uploads it."""
        if self._wandb is None:
            return None
        self._wandb.finish(exit_code=exit_code)
        if self.mode == "online":
            return None
        segments = sorted((self._folder.path.resolve() / "wandb").glob("offline-run-*"))
        return f"wandb sync {' '.join(shlex.quote(str(segment)) for segment in segments)}" if segments else None


class _Link(NamedTuple):
    id: str
    resume: str | None
    group: str | None
    config: dict[str, object]


def _link(logger: Logger, ids: Sequence[str] | None, config: Mapping[str, object]) -> _Link:
    """How a W&B run of this folder is opened, given the ids of those that it had before."""
    if not ids:
        return _Link(secrets.token_hex(4), None, logger.group, dict(config))
    if logger.mode == "online":
        return _Link(ids[0], "allow", logger.group, dict(config))
    return _Link(secrets.token_hex(4), None, logger.group or ids[0], {**config, "resumed_from": ids[-1]})


def _keep_staging_in(folder: RunFolder) -> None:
    """Let W&B stage tables inside the run folder, unless the user chose a place: the home folder may not be writable,
    and a run that is synced later must find them."""
    chosen = os.environ.get("WANDB_DATA_DIR")
    if chosen is None or chosen in _STAGING:
        _STAGING.add(str(folder.path.resolve() / "wandb"))
        os.environ["WANDB_DATA_DIR"] = str(folder.path.resolve() / "wandb")
        (folder.path / "wandb").mkdir(exist_ok=True)


def check_online(logger: Logger) -> None:
    """Make sure, within seconds, that an online run can start: a key is there and the server answers.

    Raises MessageError otherwise. Does nothing for the other modes.
    """
    if logger.mode != "online":
        return
    import wandb

    try:
        url = _server(wandb)
    except ValueError as error:
        raise MessageError(f"logger.mode=online: W&B's settings are wrong ({_one_line(error)}); {_HINT}") from None
    if not _has_key(wandb):
        raise MessageError(
            f"logger.mode=online needs a W&B key (none found, or not of a key's form): run `wandb login`, "
            f"set WANDB_API_KEY, {_HINT}"
        )
    trouble = _unreachable(url)
    if trouble:
        raise MessageError(
            f"logger.mode=online: the W&B server {url} does not answer ({trouble}); check the network, {_HINT}"
        )


def state() -> dict[str, object]:
    """W&B's version, server and whether a key is there, without asking the server."""
    import wandb

    return {"version": wandb.__version__, "server": _server(wandb), "key": _has_key(wandb)}


def _server(wandb: Any) -> str:
    return str(wandb.setup(settings=wandb.Settings(silent=True)).settings.base_url)


def _has_key(wandb: Any) -> bool:
    import logging

    logging.getLogger("wandb").setLevel(logging.ERROR)
    _server(wandb)
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except (wandb.Error, ValueError):
        return False


def _unreachable(url: str) -> str | None:
    """Why the server does not answer, or None. A thread, since name lookups have no time limit of their own."""
    answer: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=_REACH_SECONDS).close()
            answer.append(None)
        except urllib.error.HTTPError:
            answer.append(None)
        except (OSError, ValueError) as error:
            answer.append(_one_line(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_REACH_SECONDS + 1)
    return answer[0] if answer else f"no answer in {_REACH_SECONDS:g} s"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__

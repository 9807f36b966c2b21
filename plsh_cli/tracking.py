"""Where a run's metrics go: metrics.jsonl always, and Weights & Biases offline, online or not at all."""

from __future__ import annotations

import os
import secrets
import shlex
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plsh_cli.config.schema.sections import Logger
from plsh_cli.errors import MessageError
from plsh_cli.rundir import RunFolder, finite, now

_REACH_SECONDS = 4.0
_INIT_SECONDS = 7.0
_STAGING: set[str] = set()
_HINT = "or use logger.mode=offline (the default; sync later) or logger.mode=disabled"


class Tracker:
    """One run's metrics. Use `open`; `finish` must be called once, also after an error."""

    def __init__(self, folder: RunFolder, wandb_run: Any, mode: str) -> None:
        self._folder, self._wandb, self.mode = folder, wandb_run, mode
        self._begin = time.monotonic()
        self._step = 0

    @classmethod
    def open(cls, folder: RunFolder, logger: Logger, config: Mapping[str, object], command: str) -> Tracker:
        """Start tracking. Raises MessageError where an online run cannot be started within seconds."""
        if logger.mode == "disabled":
            return cls(folder, None, logger.mode)
        import wandb

        _keep_staging_in(folder)
        try:
            settings = wandb.Settings(console="off", silent=True, init_timeout=_INIT_SECONDS)
            run = wandb.init(
                project=logger.project,
                entity=logger.entity,
                group=logger.group,
                tags=list(logger.tags) or None,
                job_type=command,
                id=secrets.token_hex(4),
                name=folder.path.name,
                dir=str(folder.path.resolve()),
                mode=logger.mode,
                config=finite(dict(config)),
                reinit="create_new",
                settings=settings,
            )
        except (wandb.Error, OSError, TimeoutError, ValueError) as error:
            raise MessageError(
                f"logger.mode={logger.mode}: W&B did not start a run ({_one_line(error)}); {_HINT}"
            ) from None
        return cls(folder, run, logger.mode)

    def log(self, metrics: Mapping[str, object]) -> None:
        """Record one set of metrics as the next step. Numbers and text only."""
        self._step += 1
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

"""Downloading a wheel from the package index that the user's pip is set up for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from plsh_cli.assets.download import Broken, download
from plsh_cli.assets.simple_index import find_wheel, pip_settings
from plsh_cli.errors import MessageError

#: An index that does not answer pip is given up after this many seconds, twice.
_TIMEOUT_SECONDS = 15


def download_wheel(requirement: str, folder: Path) -> Path:
    """The wheel of `requirement` (name==version), without its dependencies, as a file in `folder`.

    A download that was interrupted goes on where it stopped if `folder` is the same. Where the index cannot be read
    directly (passwords, other ways to it that only pip knows), pip downloads it, from the beginning. Nothing is
    installed or imported. Raises MessageError without pip, network or such a wheel.
    """
    settings = pip_settings()
    link = find_wheel(requirement, settings) if settings else None
    if settings is None or link is None:
        return _by_pip(requirement, folder)
    wheel = folder / link.filename
    if link.url.startswith("file:"):
        shutil.copyfile(url2pathname(urlsplit(link.url).path), wheel)
        return wheel
    try:
        download(link.url, wheel, settings.opener, link.sha256)
    except Broken as error:
        raise MessageError(
            f"{requirement} could not be downloaded: {error}. What has arrived is kept: the same command goes on"
        ) from error
    return wheel


def _by_pip(requirement: str, folder: Path) -> Path:
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "1", "--timeout", str(_TIMEOUT_SECONDS)]
    options += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(folder)]
    # Without the safe path, a folder named pip where the user happens to be would be run instead.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    if "No space left on device" in done.stderr:
        raise MessageError(
            f"{requirement} could not be downloaded: no space left in {folder} (set PLSH_CACHE to another folder) or "
            f"in pip's temporary folder (set TMPDIR)"
        )
    raise MessageError(
        f"{requirement} could not be downloaded: {_trouble(done.stderr)}. Without a network, download it elsewhere "
        f"with `pip download --no-deps {requirement}` and set PIP_FIND_LINKS to the folder that holds it"
    )


def _trouble(output: str) -> str:
    if "No module named pip" in output:
        return f"{sys.executable} has no pip (`{sys.executable} -m ensurepip` installs it)"
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    broken = [line for line in lines if "connection broken" in line or "Max retries" in line or "timed out" in line]
    if broken:
        # pip quotes Python objects in front of the reason.
        reason = re.sub(r"<[^>]*>: ", "", broken[-1].partition("connection broken by ")[2] or broken[-1])
        return f"the package index cannot be reached ({reason[:300]})"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return f"pip says: {(errors or lines or ['nothing'])[-1][:300]}"

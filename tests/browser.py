"""Debian's chromium without a window, driven over its debugging pipe: what a page shows, asks for, complains about."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 180.0  # for one answer, on a busy machine


def find() -> str | None:
    """The browser's program, or None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page in a running browser. `events` collects what the browser has said unasked, by method."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer, self._last, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The browser's answer to a command of the DevTools protocol; AssertionError where it refuses."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Load a file in a window of this many CSS pixels and wait until it and its images are there."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + SECONDS
        while self.value("document.readyState") != "complete" or self.value("location.protocol") != "file:":
            assert time.monotonic() < end, "the page did not load"
            time.sleep(0.05)
        self.call(
            "Runtime.evaluate",
            expression="Promise.all([...document.images].map(image => image.decode().catch(() => 0))).then(() => 0)",
            awaitPromise=True,
        )

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings that the page has caused since it was opened."""
        self.value("0")  # what was said before this answer is here
        found = []
        for event in self.events:
            if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(json.dumps(event["params"])[:400])
        return found

    def requests(self) -> list[str]:
        """The addresses that the page has asked for since it was opened, but for those that hold their content."""
        asked = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in asked if not address.startswith("data:")]

    def screenshot(self, to: Path, height: int | None = None) -> None:
        """A picture of the page from its top, whole or this many pixels of it."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        to.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed on A4."""
        printed = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=False)
        return base64.b64decode(printed["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], SECONDS)
            assert ready, "the browser does not answer"
            piece = os.read(self._reading, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextmanager
def running(program: str, profile: Path) -> Iterator[Browser]:
    """A browser that ends with the body. `profile`: an empty folder of its own."""
    to_browser, writing = os.pipe()
    reading, from_browser = os.pipe()
    # The browser reads commands from descriptor 3 and answers on 4.
    words = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", program, "--headless",
             "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
             f"--user-data-dir={profile}"]  # fmt: skip
    process = subprocess.Popen(
        words, pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(reading, writing)
    finally:
        os.close(writing)
        os.close(reading)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

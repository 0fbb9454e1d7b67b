"""A real headless Chromium, controlled by its debugging protocol through a pipe, without a driver or a package."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from localcluster.packages import BROWSERS

PATIENCE: Final = 60.0
"""Seconds within which a busy machine's browser answers one command."""
OPTIONS: Final = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb", "--lang=en-GB", "--password-store=basic"),
)
WITH_PIPES: Final = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for wanted, found in zip((3, 4), high):
    os.dup2(found, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts the browser, which reads from descriptor 3 and writes to descriptor 4."""


class BrowserError(Exception):
    """The browser, or JavaScript in it, has failed."""


def program() -> str:
    """The path of the browser.

    Raises:
        BrowserError: there is none.
    """
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise BrowserError(
        f"there is no {' or '.join(BROWSERS)}: as root, `make test-all` installs it (apt-get install chromium)"
    )


class Tab:
    """One page of a browser.

    Args:
        write: the file descriptor on which the browser reads.
        read: the one on which it writes.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._number, self._session = write, read, b"", 0, ""
        self.complaints: list[str] = []
        """Exceptions, errors on the console, and violations of the content security policy."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int = 1180, height: int = 900) -> None:
        """Open an address in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Page.navigate", url=url)

    def eval(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if problem := found.get("exceptionDetails"):
            raise BrowserError(f"{script}: {problem}")
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.eval(f"Boolean({script})"):
                return
            self.eval("new Promise((done) => setTimeout(done, 50))")
        raise BrowserError(f"never true: {script}\n{self.eval('document.body.innerText')}\n{self.complaints}")

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(self.eval(f"document.querySelector({json.dumps(selector)}).innerText"))

    def picture(self, path: Path, height: int) -> None:
        """Write a picture of the top of the page as WebP; with smoothed text a PNG would be four times as large."""
        width = self.eval("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self._call("Page.captureScreenshot", format="webp", quality=70, clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], PATIENCE)[0]:
                raise BrowserError("the browser does not answer")
            if not (more := os.read(self._read, 1 << 16)):
                raise BrowserError("the browser has ended")
            self._rest += more
        one, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(one))


@contextmanager
def browser() -> Iterator[Tab]:
    """Run a browser with one page, its own profile and time zone UTC."""
    to_read, write = os.pipe()
    read, to_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program(), *OPTIONS, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium has no sandbox as root; the page belongs to this repository.
        started = subprocess.Popen(
            [sys.executable, "-S", "-c", WITH_PIPES, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TZ": "UTC", "HOME": profile},
        )
        os.close(to_read)
        os.close(to_write)
        try:
            yield Tab(write, read)
        finally:
            os.close(write)  # Closing its pipe ends the browser.
            os.close(read)
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()

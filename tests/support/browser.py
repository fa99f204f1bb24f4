"""A headless Chromium, driven by the DevTools protocol over a pipe: nothing but the browser is needed.

https://chromedevtools.github.io/devtools-protocol/; with `--remote-debugging-pipe` the browser reads commands
from file descriptor 3 and writes answers and events to 4, each one JSON text that ends with a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    """Path of the browser; None where there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Page:
    """One open page.

    Attributes:
        complaints: What the console and the engine reported: errors, warnings, exceptions, refused loads.
        requests: Addresses that were asked for, the page's own first.
    """

    def __init__(self, command: int, answer: int) -> None:
        self._command, self._answer = command, answer
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self._send(f"{domain}.enable")

    def show(self, path: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Open a file as a screen of that size in CSS pixels."""
        self.complaints, self.requests = [], []
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self._send("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + _TIMEOUT_S
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < end, "the page does not finish to load"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; the value must be JSON. A page's policy does not hold here."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save the page as a PNG."""
        answer = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed on A4."""
        answer = self._send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)
        return base64.b64decode(answer["data"])

    def print_media(self) -> None:
        """Lay the page out as for paper."""
        self._send("Emulation.setEmulatedMedia", media="print")

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._command, data) :]
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                result: dict[str, Any] = found["result"]
                return result
            self._note(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answer], [], [], _TIMEOUT_S)
            assert ready, "the browser does not answer"
            part = os.read(self._answer, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(f"console: {parameters['type']}: {parameters['args']}")
            case "Runtime.exceptionThrown":
                self.complaints.append(f"exception: {parameters['exceptionDetails']}")
            case "Log.entryAdded":
                self.complaints.append(f"log: {parameters['entry']['text']}")
            case "Audits.issueAdded":
                self.complaints.append(f"issue: {parameters['issue']}")


@contextlib.contextmanager
def open_browser(chromium: str, profile: Path) -> Iterator[Page]:
    """Start a browser with an empty profile in a folder; it ends with the block."""
    commands, answers = os.pipe(), os.pipe()
    words = [
        chromium, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu",
        "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
        "--force-color-profile=srgb",
        *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
    ]  # fmt: skip
    log = profile.with_name(f"{profile.name}.log").open("wb")

    def descriptors() -> None:
        # Out of the way first: one of the pipes may itself be 3 or 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands[0], answers[1])]
        for number, end in zip((3, 4), ends, strict=True):
            os.dup2(end, number)

    process = subprocess.Popen(words, preexec_fn=descriptors, close_fds=False, stdout=log, stderr=log)
    os.close(commands[0])
    os.close(answers[1])
    try:
        yield Page(commands[1], answers[0])
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for end in (commands[1], answers[0]):
            os.close(end)
        log.close()

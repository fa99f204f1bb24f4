"""A Chromium without a window, driven through a pipe."""

from __future__ import annotations

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

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_TIMEOUT_S = 60.0
_COMPLAINTS = {
    "Runtime.consoleAPICalled": lambda event: f"console: {event['type']}: {event['args']}",
    "Runtime.exceptionThrown": lambda event: f"exception: {event['exceptionDetails']}",
    "Log.entryAdded": lambda event: f"log: {event['entry']['text']}",
    "Audits.issueAdded": lambda event: f"issue: {event['issue']}",
}


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
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.send(f"{domain}.enable")

    def show(self, path: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Open a file as a screen of that size in CSS pixels."""
        self.complaints, self.requests = [], []
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + _TIMEOUT_S
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < end, "the page does not finish to load"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; the value must be JSON. A page's policy does not hold here."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._command, data) :]
        while True:
            event = self._next()
            if event.get("id") == self._number:
                assert "error" not in event, f"{method}: {event['error']}"
                result: dict[str, Any] = event["result"]
                return result
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            elif complaint := _COMPLAINTS.get(event["method"]):
                self.complaints.append(complaint(event["params"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answer], [], [], _TIMEOUT_S)
            assert ready, "the browser does not answer"
            part = os.read(self._answer, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        event: dict[str, Any] = json.loads(text)
        return event


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


@contextlib.contextmanager
def installed_browser(profile: Path) -> Iterator[Page]:
    """Start this machine's Chromium; skip without one, or fail in CI."""
    chromium = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if chromium is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI has no Chromium: apt-get install chromium")
        pytest.skip("no Chromium here: apt-get install chromium")
    with open_browser(chromium, profile) as page:
        yield page

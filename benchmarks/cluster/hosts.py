"""Hosts on one machine: network namespaces of Linux, joined by a bridge (as root, with iproute2)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence


def why_not() -> str:
    """Return why there can be no such hosts here; empty where there can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command ip is not here (package iproute2)"
    name = f"qc-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=30)
    if made.returncode:
        return f"ip netns add: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True, timeout=30)
    return ""


class Hosts:
    """Some hosts on a network of their own, which reaches nothing else.

    Args:
        names: Of the hosts; each gets an address of 10.83.0.0/24.
    """

    def __init__(self, *names: str) -> None:
        self._prefix = f"qc{uuid.uuid4().hex[:5]}"
        self.addresses = {name: f"10.83.0.{10 + number}" for number, name in enumerate(names)}

    def __enter__(self) -> Hosts:
        try:
            self._make("switch")
            _ip("-n", self._space("switch"), "link", "add", "br0", "type", "bridge")
            _ip("-n", self._space("switch"), "link", "set", "br0", "up")
            for number, (name, address) in enumerate(self.addresses.items()):
                self._make(name)
                port = f"p{number}"
                _ip(
                    "-n", self._space(name), "link", "add", "eth0", "type", "veth", "peer", "name", port,
                    "netns", self._space("switch"),
                )  # fmt: skip
                _ip("-n", self._space("switch"), "link", "set", port, "master", "br0", "up")
                _ip("-n", self._space(name), "address", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", self._space(name), "link", "set", "eth0", "up")
                _ip("-n", self._space(name), "route", "add", "default", "via", address)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def on(self, name: str) -> list[str]:
        """Return the words before a command that have it run on a host."""
        return ["ip", "netns", "exec", self._space(name)]

    def carried(self) -> dict[str, tuple[int, int]]:
        """Return host to the bytes that its interface has received and sent."""
        return {name: self._carried(name) for name in self.addresses}

    def _carried(self, name: str) -> tuple[int, int]:
        told = _ip("-n", self._space(name), "-s", "-j", "link", "show", "eth0")
        counted = json.loads(told)[0]["stats64"]
        return int(counted["rx"]["bytes"]), int(counted["tx"]["bytes"])

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _make(self, name: str) -> None:
        _ip("netns", "add", self._space(name))
        _ip("-n", self._space(name), "link", "set", "lo", "up")

    def _remove(self) -> None:
        for name in (*self.addresses, "switch"):
            # Without a check: some of them may not have been made.
            subprocess.run(
                ["ip", "netns", "del", self._space(name)], capture_output=True, check=False, timeout=30
            )


def _ip(*words: str) -> str:
    command: Sequence[str] = ["ip", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

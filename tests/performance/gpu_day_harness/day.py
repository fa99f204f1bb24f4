"""What a check of the day works with: it builds, runs and compares, and writes down what it saw at once.

What a process saw before it died or was ended is in the result all the same.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


class Failed(Exception):
    """A check whose result is wrong."""


class NotRun(Exception):
    """What cannot be done on this machine, with the reason."""


class BuiltOnly(NotRun):
    """What was built and cannot be run here."""


@dataclass
class Day:
    """One check.

    Attributes:
        kit: The folder that was prepared.
        folder: Where engines go; the checks of one day share it.
        target: "tensorrt" or "tensorrt-rtx".
        gpus: What is built for; empty for the GPU here.
        seen: What was seen so far; see `see`.
        notes: The file of `seen`.
        torch_python, torch_path: The interpreter with PyTorch, where it is another, and its PYTHONPATH.
    """

    kit: Path
    folder: Path
    target: str
    gpus: tuple[str, ...]
    notes: Path
    torch_python: str = ""
    torch_path: str = ""
    seen: dict[str, Any] = field(default_factory=dict)

    def see(self, **facts: Any) -> None:
        """Write down facts."""
        self.seen |= facts
        partial = self.notes.with_suffix(".partial")
        partial.write_text(json.dumps(self.seen, default=str))
        partial.replace(self.notes)

    def attempt(self, name: str, action: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        """Do one part of a check, and write down what came of it."""
        from qcompile.errors import EngineUnavailable

        start = time.perf_counter()
        try:
            about: dict[str, Any] = {"result": "passed", **action(*arguments)}
        except EngineUnavailable as error:  # such as no driver, where the environment's check says why
            about = {"result": "not run", "reason": error.message}
        except NotRun as reason:
            about = {"result": result_of(reason), "reason": str(reason)}
        except Exception as error:  # every failure is a finding, and the next part goes on
            about = {"result": "failed", **described(error)}
        seconds = round(time.perf_counter() - start, 3)
        self.see(**{name: {**self.seen.get(name, {}), **about, "seconds": seconds}})

    def require(self, *names: str) -> None:
        """Raise Failed, NotRun or BuiltOnly by the worst result of the parts, of all by default."""
        parts = {
            name: part for name, part in self.seen.items() if isinstance(part, dict) and "result" in part
        }
        for kind, raised in (("failed", Failed), ("not run", NotRun), ("built", BuiltOnly)):
            bad = {_reason(parts[name]): name for name in names or parts if parts[name]["result"] == kind}
            if bad:
                raise raised("; ".join(f"{name}: {reason}" for reason, name in bad.items()))

    @property
    def adapter(self) -> Any:
        """TensorRT as qcompile sees it."""
        from qcompile.engines.tensorrt.adapter import load_adapter

        return load_adapter(self.target)

    def build(
        self,
        source: str,
        name: str,
        precision: str = "fp32",
        *,
        profile: str = "",
        part: str = "",
        **more: Any,
    ) -> Path:
        """Build a file of the kit, or of the folder, to NAME.engine.

        Args:
            source, name: Files without folder; `name` without ending.
            profile: "x:1x4..2x4..4x4,..."; several are separated by a blank.
            part: Where the proof is written down; by default the name.
            more: Options of TensorRT by `tensorrt={...}`, others of `qcompile.build`.
        """
        import qcompile
        from qcompile.spec.tensorrt import TensorRTOptions

        path = self.graph(source)
        options = {"timing_cache": "off", "tactic_sources": self._sources(), **more.pop("tensorrt", {})}
        if profile:
            options["profiles"] = tuple(profile.split())
        output, start = self.folder / f"{name}.engine", time.perf_counter()
        output.unlink(missing_ok=True)
        manifest = qcompile.build(
            path, output, target=self.target, precision=precision, gpus=list(self.gpus),
            tensorrt=TensorRTOptions(**options), **more,
        ).manifest  # fmt: skip
        facts = {
            "seconds": round(time.perf_counter() - start, 3),
            "bytes": output.stat().st_size,
            "proof": manifest.proof,
            "warnings": list(manifest.warnings),
            "checks": [str(check) for check in manifest.checks],
        }
        self.see(**{f"{part or name} build": facts})
        return output

    def graph(self, name: str) -> Path:
        """Return a graph of the folder, or of the kit with its weights, which are drawn on the first use."""
        import onnx
        from random_weights import fill

        path = self.folder / name
        if not path.is_file():
            model = onnx.load(self.kit / name)
            fill(model)
            onnx.save(model, path)
        return path

    def open(self, engine: Path, **options: Any) -> Any:
        """Load an engine; BuiltOnly if engines cannot be run here."""
        import qcompile
        from qcompile.errors import EngineUnavailable

        try:
            return qcompile.load(engine, **options)
        except EngineUnavailable as error:
            raise BuiltOnly(str(error.data.get("reason") or error.message)) from error

    def compare(self, engine: Path, reference: str, least_db: float, **options: Any) -> dict[str, Any]:
        """Run an engine on a batch of the kit; return its `closeness` to the outputs there."""
        feeds, expected = self.batch(reference)
        with self.open(engine, **options) as runner:
            found = runner.infer(feeds)
        return self.closeness(expected, found, least_db)

    def closeness(self, expected: Any, found: Any, least_db: float) -> dict[str, Any]:
        """Return the signal-to-noise ratio of the worst output; Failed if it is below `least_db`."""
        worst = min(snr_db(expected[name], found[name]) for name in expected)
        if not worst >= least_db:
            raise Failed(
                f"{worst:.1f} dB from ONNX Runtime's outputs; at least {least_db:.0f} dB is required"
            )
        return {"snr_db": round(worst, 1)}

    def batch(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a batch of the kit and ONNX Runtime's outputs."""
        from kit import network_feeds

        with np.load(self.kit / f"{name}.outputs.npz") as stored:
            outputs = dict(stored)
        if (self.kit / f"{name}.feeds.npz").is_file():
            with np.load(self.kit / f"{name}.feeds.npz") as stored:
                return dict(stored), outputs
        about = json.loads((self.kit / "kit.json").read_text())["networks"][name.partition(".")[0]]
        rows = len(next(iter(outputs.values())))
        return {key: array[:rows] for key, array in network_feeds(**about).items()}, outputs

    def _sources(self) -> tuple[str, ...]:
        """None beside TensorRT's own where cuBLAS and cuDNN are stubs, as in a carried TensorRT 8.5."""
        return ("none",) if os.environ.get("QCOMPILE_KIT_SITE") else ()


def result_of(reason: NotRun) -> str:
    return "built" if isinstance(reason, BuiltOnly) else "not run"


def described(error: BaseException) -> dict[str, Any]:
    lines = traceback.format_exception(error)
    return {
        "error": type(error).__name__,
        "message": str(error),
        "hint": str(getattr(error, "hint", "") or ""),
        "traceback": "".join(lines)[-4000:],
    }


def _reason(part: dict[str, Any]) -> str:
    text = part.get("message", part.get("reason", ""))
    return str(text).splitlines()[0] if text else ""


def snr_db(expected: Any, found: Any) -> float:
    """Return the signal-to-noise ratio of an output; Failed if it has another shape."""
    from qcompile.model.outputs.judgement import output_error

    if expected.shape != found.shape:
        raise Failed(f"shape {found.shape}; {expected.shape} is right")
    return float(output_error(expected, found).snr_db)

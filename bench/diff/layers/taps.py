"""Run both sides on the same samples, with as many taps as fit into memory, and collect the errors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....core.files import locked_folder, writing
from ....core.installation import import_package
from ....core.processes.arrays import load_array, save_arrays
from ....core.processes.worker import Worker
from ....core.progress import Progress, quiet
from ....data.batches import Data
from ....errors import DataError
from ....model.graph.graph import infer_types
from ....model.graph.multiply_adds import known_shapes
from ....model.graph.onnx_file import Graph
from ....model.outputs.judgement import ErrorSums
from ....model.sessions.random_input import RandomInput
from ....spec.tensors import samples_in
from ...measure.artifacts import WORKER, try_extents
from .job import Job
from .pairing import Pairs
from .sides import Form, Side

TAP_MEMORY_SHARE = 0.12  # memory limit of a run's taps, as a share of the memory of a run without taps
BATCH_TIMEOUT_S = 600.0  # longest wait for one batch
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 4}  # bfloat16 is widened


class LayerRuns:
    """The runs of one comparison.

    Attributes:
        memory_bytes: Side to "plain" and "tapped", the largest memory of its runs.
        changed: Artifact output to its error with taps, compared to a run without; of all runs the largest.
        refused: Index of a pair to the reason why it cannot be compared.
    """

    def __init__(
        self,
        reference: Side,
        artifact: Side,
        pairs: Pairs,
        samples: Samples,
        *,
        threads: int,
        casts: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self.reference, self.artifact, self.pairs, self.samples = reference, artifact, pairs, samples
        self.threads, self.casts, self.progress = threads, casts, progress
        self.folder = samples.folder.parent
        self.runs = 0
        self.memory_bytes = {side: {"plain": 0, "tapped": 0} for side in ("reference", "artifact")}
        self.changed: dict[str, ErrorSums] = {}
        self.refused: dict[int, str] = {}
        self._cost = self._tap_bytes()

    def plain(self) -> dict[str, ErrorSums]:
        """Run both sides without taps; return the errors of outputs that pair by name or by position."""
        files = {tensor.name: f"r{number}" for number, tensor in enumerate(self.reference.io.outputs)}
        output_names = [tensor.name for tensor in self.artifact.io.outputs]
        outputs = {name: files[name] for name in output_names if name in files}
        if not outputs and len(files) == len(output_names):  # by position
            outputs = dict(zip(output_names, files.values(), strict=True))
        folder = self._folder("outputs")
        self._run("reference", "run", output_folders=files, write=folder, plain=True)
        self._plain_files = {name: f"a{number}" for number, name in enumerate(output_names)}
        answer = self._run(
            "artifact", "run", output_folders=self._plain_files, outputs=outputs, write=folder,
            reference_outputs=folder, plain=True,
        )  # fmt: skip
        return dict(answer["errors"])

    def fits(self, indexes: Sequence[int]) -> bool:
        """Return whether the taps need at most `TAP_MEMORY_SHARE` of the memory of a run without taps."""
        return all(
            sum(cost[index] for index in indexes) <= TAP_MEMORY_SHARE * self.memory_bytes[side]["plain"]
            for side, cost in self._cost.items()
        )

    def measure(self, indexes: Sequence[int]) -> dict[int, ErrorSums]:
        """Run both sides with taps; return index to error. `refused` gets pairs that cannot be compared."""
        tap_folder = self._write_reference(indexes)
        answer = self._run(
            "artifact",
            f"run with {len(indexes)} taps",
            **self._artifact_job(indexes, tap_folder),
            output_folders=self._plain_files,
            own_outputs=str(self.folder / "outputs"),
        )
        shutil.rmtree(tap_folder)
        for name, sums in answer["changed"].items():
            if name not in self.changed or sums.snr_db < self.changed[name].snr_db:
                self.changed[name] = sums
        by_name = {self.pairs.pairs[index].artifact: index for index in indexes}
        return self._by_index(answer, by_name)

    def save_values(self, indexes: Sequence[int]) -> tuple[Path, Path]:
        """Run both sides once more; return the folders of the reference's and the artifact's tap values."""
        tap_folder = self._write_reference(indexes)
        values = self._folder("kept")
        self._run("artifact", f"keep {len(indexes)} tensors", **self._artifact_job(indexes), write=values)
        return Path(tap_folder), Path(values)

    def _by_index(self, answer: Mapping[str, Any], index_of: Mapping[str, int]) -> dict[int, ErrorSums]:
        self.refused.update({index_of[name]: why for name, why in answer["refused"].items()})
        return {index_of[name]: sums for name, sums in answer["errors"].items()}

    def tap_file(self, index: int) -> str:
        return f"t{index}"

    def _write_reference(self, indexes: Sequence[int], *, into: str = "") -> str:
        tap_folder = into or self._folder("taps")
        inputs = {tensor.name for tensor in self.reference.io.inputs}
        taps: dict[str, dict[str, Any]] = {}
        links: list[tuple[str, str]] = []  # of further pairs with the same reference tensor
        for index in indexes:
            name, file = self.pairs.pairs[index].reference, self.tap_file(index)
            if name in inputs:
                (Path(tap_folder) / file).mkdir()
                for number in range(len(self.samples.batch_names)):
                    values = self.samples.read(number, name)
                    np.save(Path(tap_folder) / file / f"{number}.npy", values, allow_pickle=False)
            elif name in taps:
                links.append((taps[name]["file"], file))
            else:
                taps[name] = {"tensor": name, "file": file, "form": Form()}
        if taps:
            self._run("reference", f"run with {len(taps)} taps", taps=list(taps.values()), write=tap_folder)
        for target, link in links:
            (Path(tap_folder) / link).symlink_to(Path(tap_folder) / target)
        return tap_folder

    def _artifact_job(self, indexes: Sequence[int], reference: str = "") -> dict[str, Any]:
        """Return settings of a run that compares taps (or engine outputs) with a folder, or writes them."""
        pairs = {self.tap_file(index): self.pairs.pairs[index] for index in indexes}
        if self.artifact.weightless is not None:
            taps = [{"tensor": pair.artifact, "file": f, "form": pair.form} for f, pair in pairs.items()]
            return {"taps": taps, "reference": reference}
        files = {pair.artifact: file for file, pair in pairs.items()}
        return {"outputs": files, "reference_outputs": reference} if reference else {"output_folders": files}

    def _run(
        self, side: str, text: str, *, plain: bool = False, part: Side | None = None, **settings: Any
    ) -> dict[str, Any]:
        runnable = part or (self.reference if side == "reference" else self.artifact)
        job = Job(
            path=str(runnable.path.resolve()),
            runtime=runnable.runtime,
            threads=self.threads,
            io=runnable.io.as_json(),
            inputs=[tensor.name for tensor in runnable.io.inputs] if part else (),
            feeds=str(self.samples.folder),
            batches=len(self.samples.batch_names),
            batch_names=self.samples.batch_names,
            cast=self.casts if side == "artifact" else {},
            **settings,
        )
        self.runs += side == "artifact"
        name = runnable.path.name
        answer = run(job, name, f"{text}: {name}", self.progress)
        for kind in ("errors", "changed"):
            answer[kind] = {tensor: ErrorSums(**sums) for tensor, sums in answer[kind].items()}
        memory, kind = self.memory_bytes[side], "plain" if plain else "tapped"
        memory[kind] = max(memory[kind], answer["peak_bytes"])
        return answer

    def _folder(self, name: str) -> str:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return str(folder)

    def _tap_bytes(self) -> dict[str, list[int]]:
        """Return the bytes of each tap on both sides; an unknown size counts as the largest."""
        assert self.reference.weightless is not None
        shapes = known_shapes(self.reference.weightless.model, self.samples.shapes)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        types = infer_types(self.artifact.weightless.model) if self.artifact.weightless else {}
        pairs = self.pairs.pairs
        largest = max((sizes[p.reference] for p in pairs if p.reference in sizes), default=0)
        elements = [sizes.get(pair.reference, largest) for pair in pairs]
        width = [1 if p.form.is_integer else _BYTES.get(types.get(p.artifact, ""), 4) for p in pairs]
        return {
            "reference": [4 * count for count in elements],
            "artifact": [count * size for count, size in zip(elements, width, strict=True)],
        }


def run(job: Job, name: str, text: str, progress: Progress) -> dict[str, Any]:
    with (
        locked_folder(Path(job.feeds).parent, "run") as folder,
        Worker(name, module=WORKER, threads=job.threads, timeout_s=BATCH_TIMEOUT_S) as worker,
    ):
        return worker.ask(
            "layers",
            job={**asdict(job), "folder": str(folder)},
            on_progress=lambda done: progress(text, done, job.batches),
        )


@dataclass(frozen=True)
class Samples:
    """Batches on disk, `N.npz` in `folder`, with their names in errors, and the input shapes of the first."""

    folder: Path
    batch_names: tuple[str, ...]
    count: int
    shapes: Mapping[str, tuple[int, ...]]

    def read(self, number: int, name: str) -> NDArray[Any]:
        return load_array(self.folder / f"{number}.npz", name)


def write_samples(
    reference: Graph, data: str | None, folder: Path, *, limit: int, is_spread: bool = False
) -> Samples:
    """Write the samples one by one if the model allows it, so that taps need little memory."""
    folder.mkdir()
    where: list[str] = []
    count = 0
    shapes: dict[str, tuple[int, ...]] = {}
    for name, feeds in _batches(reference, data, limit, is_spread):
        shapes = shapes or {key: array.shape for key, array in feeds.items()}
        for key, array in feeds.items():
            if array.dtype.name == "bfloat16" or array.dtype.kind in "OSU":
                raise DataError(
                    f"{name}: input {key!r} is {array.dtype.name}, which `layers` does not support",
                    hint="leave `layers` out to compare the outputs",
                    tensor=key,
                )
        save_arrays(folder / f"{len(where)}.npz", feeds)
        where.append(name)
        count += samples_in(feeds)
    return Samples(folder, tuple(where), count, shapes)


def _batches(reference: Graph, data: str | None, limit: int, is_spread: bool) -> Any:
    if data is not None:
        for batch in Data(data, reference.io.inputs, batch_size=1, limit=limit, is_spread=is_spread):
            yield batch.where, batch.feeds
        return
    random = RandomInput(reference.model)
    try_extents(random, reference.path)
    for seed in range(limit):
        yield f"made input {seed + 1}", random.feeds(seed=seed)


def require_polygraphy() -> None:
    """Raise before any run if Polygraphy, which saves the results, cannot be imported."""
    problem = "`save_results`: Polygraphy cannot be imported"
    import_package("polygraphy.comparator", problem, extra="cpu", engine="polygraphy")


def save_results(runs: LayerRuns, indexes: Sequence[int], path: Path) -> None:
    """Run both sides once more and save the values of pairs by the reference's names, per batch."""
    from polygraphy.comparator import RunResults
    from polygraphy.logger import G_LOGGER

    by_name = {runs.pairs.pairs[index].reference: index for index in reversed(indexes)}
    ours, theirs = runs.save_values(sorted(by_name.values()))
    results = RunResults()
    results.add(_iterations(runs, by_name, ours, scaled=False), runner_name="reference")
    results.add(_iterations(runs, by_name, theirs, scaled=True), runner_name="artifact")
    with writing(path) as place, quiet(), G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        results.save(str(place))
    for folder in (ours, theirs):
        shutil.rmtree(folder)


def _iterations(
    runs: LayerRuns, by_name: dict[str, int], folder: Path, *, scaled: bool
) -> list[dict[str, NDArray[Any]]]:
    iterations = []
    for number in range(len(runs.samples.batch_names)):
        outputs = {}
        for name, index in by_name.items():
            array = np.load(folder / runs.tap_file(index) / f"{number}.npy", allow_pickle=False)
            if scaled:
                form = runs.pairs.pairs[index].form
                array = form.ordered(array)
                pieces = [np.asarray(piece) for piece in form.pieces(array, max(array.size, 1))]
                array = np.concatenate(pieces).reshape(array.shape) if pieces else array.astype(np.float32)
            outputs[name] = array
        iterations.append(outputs)
    return iterations

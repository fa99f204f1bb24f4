"""See inside an engine: build a part of its graph that ends with the tensors, and run it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BuildError, InvalidOption, ModelError
from ...model.output_error import ErrorSums
from ...progress import Progress
from .pairing import Pairs
from .rebuild import EngineSource, Rebuilder
from .samples import Samples
from .search import packed
from .sides import Side
from .taps import SHARE, LayerRuns


class EngineRuns(LayerRuns):
    """The runs of a comparison with an engine, and the builds of its parts."""

    def __init__(
        self,
        reference: Side,
        artifact: Side,
        pairs: Pairs,
        samples: Samples,
        source: EngineSource,
        *,
        threads: int,
        casts: Mapping[str, str],
        progress: Progress,
    ) -> None:
        super().__init__(reference, artifact, pairs, samples, threads=threads, casts=casts, progress=progress)
        self.rebuilder = Rebuilder(source, artifact, self.folder, progress)
        self.most_builds = 0

    def fits(self, chosen: Sequence[int]) -> bool:
        """Whether the reference's taps may be read in one run; an engine's outputs are on the GPU."""
        allowed = SHARE * self.memory_bytes["reference"]["plain"]
        return sum(self._cost["reference"][index] for index in chosen) <= allowed

    def measure(self, chosen: Sequence[int]) -> dict[int, ErrorSums]:
        """Build what lies before the tensors, run it, and return index to distance.

        Where TensorRT refuses the part, the pairs are in `refused`.
        """
        names = {self.pairs.pairs[index].artifact: index for index in chosen}
        self._tell(f"{len(names)} tensors" if len(names) > 1 else next(iter(names)))
        try:
            part, outputs = self.rebuilder.part(list(names))
        except (BuildError, InvalidOption, ModelError) as error:
            self.refused.update(dict.fromkeys(chosen, f"cannot be built: {error.message}"))
            return {}
        written = self._write_reference(chosen)
        files = {outputs[name]: self.tap_file(index) for name, index in names.items()}
        answer = self._compare(part, files, written)
        by_output = {outputs[name]: index for name, index in names.items()}
        self.refused.update({by_output[name]: why for name, why in answer["refused"].items()})
        return {by_output[name]: ErrorSums.from_json(one) for name, one in answer["errors"].items()}

    def survey(self) -> tuple[dict[int, ErrorSums], dict[str, ErrorSums]]:
        """Build the whole graph with debug tensors, run it, and return what they and its outputs tell.

        Returns:
            Index to distance of the pairs that it shows, and output to distance. That a debug tensor is in
            row-major order TensorRT does not say: these are hints.
        """
        names = {pair.artifact: index for index, pair in enumerate(self.pairs.pairs)}
        self._tell("the whole graph with debug tensors")
        part = self.rebuilder.whole(list(names))
        written = self._folder("taps")
        for group in packed(list(names.values()), self.fits, len(names)):
            self._write_reference(group, into=written)
        files = {name: self.tap_file(index) for name, index in names.items()}
        answer = self._compare(part, files, written, debug=True)
        found = {name: ErrorSums.from_json(one) for name, one in answer["errors"].items()}
        outputs = {tensor.name for tensor in part.io.outputs}
        return (
            {names[name]: sums for name, sums in found.items()},
            {name: sums for name, sums in found.items() if name in outputs},
        )

    def keep(self, chosen: Sequence[int]) -> tuple[Path, Path]:
        """Build a part that ends with the tensors and leave their values on disk, beside the reference's."""
        written = self._write_reference(chosen)
        kept = self._folder("kept")
        names = [self.pairs.pairs[index].artifact for index in chosen]
        self._tell(f"{len(names)} tensors to keep")
        part, outputs = self.rebuilder.part(names)
        own = {outputs[name]: self.tap_file(index) for name, index in zip(names, chosen, strict=True)}
        self._run("artifact", f"keep {len(chosen)} tensors", part=part, own=own, write=kept)
        return Path(written), Path(kept)

    def _compare(
        self, part: Side, files: Mapping[str, str], written: str, *, debug: bool = False
    ) -> dict[str, Any]:
        try:
            return self._run(
                "artifact", "run the part", part=part, outputs=files, reference_outputs=written, debug=debug
            )
        finally:
            shutil.rmtree(written)

    def _tell(self, what: str) -> None:
        number = self.rebuilder.builds + 1
        self.progress(f"build {number} of at most {self.most_builds}: {what}", number - 1, self.most_builds)

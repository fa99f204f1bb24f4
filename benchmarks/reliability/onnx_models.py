"""Run the ONNX backend's test models through five verbs, `inspect` to `build`, each model in a child process.

The package `onnx` makes them (kind `node`) or ships them (`simple`, `pytorch-*`): 2,024
with onnx 1.23. Expected of every run: success or one clear message. What is in the journal is not run again.

Example: nice python benchmarks/reliability/onnx_models.py --journal onnx_models.jsonl
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import forked_verbs
import onnx
from mutation_seeds import write_data, write_seed
from onnx import numpy_helper

_KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


def test_models() -> Iterator[tuple[str, onnx.ModelProto, Sequence[object]]]:
    """Yield (name, model, inputs of its first data set) of every model."""
    from onnx.backend.test.loader import load_model_tests

    for kind in _KINDS:
        for case in load_model_tests(kind=kind):
            if case.model is not None:
                yield f"{kind}/{case.name}", case.model, case.data_sets[0][0]
                continue
            folder = Path(case.model_dir)
            yield f"{kind}/{case.name}", onnx.load(folder / "model.onnx"), _stored_inputs(folder)


def _stored_inputs(folder: Path) -> list[object]:
    files = sorted((folder / "test_data_set_0").glob("input_*.pb"))
    tensors = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    return [numpy_helper.to_array(tensor) for tensor in tensors]


def write_inputs(model: onnx.ModelProto, inputs: Sequence[object], path: Path) -> Path | None:
    """Write the inputs of a model as an .npz; None where one of them is no array, or there is none."""
    import numpy as np

    stored = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in stored]
    arrays = {
        name: value for name, value in zip(names, inputs, strict=False) if isinstance(value, np.ndarray)
    }
    if not arrays or len(arrays) < len(names) or any(array.dtype.kind in "OV" for array in arrays.values()):
        return None
    np.savez(path, **arrays)
    return path


def main() -> int:
    """Run them, and print the table and what must not be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--journal", type=Path, default=Path("onnx_models.jsonl"))
    parser.add_argument("--shard", default="1/1", help="PART/PARTS of the models")
    parser.add_argument("--targets", default="onnxruntime", help="what to build for, between commas")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    journal = forked_verbs.Journal(options.journal)
    part, parts = map(int, options.shard.split("/"))
    targets = options.targets.split(",")
    models = list(test_models())
    with tempfile.TemporaryDirectory(prefix="qcompile-reliability-") as place:
        data = Path(place) / "data.npz"
        write_data("conv_net", data)

        def whole(folder: Path) -> Sequence[forked_verbs.Step]:
            write_seed("conv_net", folder)
            return forked_verbs.verbs_of(data, targets)

        forked_verbs.prepare(whole)
        last = time.monotonic()
        for number, (name, model, inputs) in enumerate(models):
            if number % parts != part - 1 or name in journal.done:
                continue
            with forked_verbs.scratch() as folder:
                onnx.save(model, folder / "m.onnx")
                steps = forked_verbs.verbs_of(write_inputs(model, inputs, folder / "data.npz"), targets)
                journal.add(name, forked_verbs.run_steps(steps, folder))
            if time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{number} of {len(models)}", file=sys.stderr, flush=True)
    return forked_verbs.report([options.journal], "models")


if __name__ == "__main__":
    sys.exit(main())

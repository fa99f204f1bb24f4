from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from safetensors.numpy import save_file

from qcompile.artifact import load_artifact
from qcompile.calibration import Data, Ranges, calibrate, load_ranges, observe
from qcompile.calibration.calibrate import Shard, parse_shard
from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.merge import merge_files
from qcompile.calibration.taps import choose_taps
from qcompile.errors import CalibrationError, DataError, InvalidOption, MissingFile, ModelError
from qcompile.model.outline import fingerprint, read_outline

MakePath = Callable[..., Path]
Array = NDArray[Any]
Said = list[tuple[str, int, int | None]]

# Machines share these cores: an example that once takes long is not an error.
property_test = settings(deadline=None, max_examples=12)

COUNT = 13
DEADLINE_S = 120


def save(path: Path, body: str, signature: str, **weights: Array) -> Path:
    """A model file from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {body} }}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def normal(*shape: int) -> Array:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def npz(path: Path, **arrays: Array) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


FUNCTION = """
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def samples():
    for index, path in enumerate(sorted(HERE.glob("*.npy"))):
        if (HERE / f"fail {index}").exists():
            raise RuntimeError("the disk is gone")
        if (HERE / f"wait {index}").exists():
            time.sleep(11)
        if (HERE / f"hang {index}").exists():
            (HERE / "hanging").touch()
            time.sleep(600)
        yield np.load(path)
"""


def function_of(folder: Path, batches: Sequence[Array]) -> str:
    """The spelling of a function that yields these batches.

    Before a batch it fails, waits or hangs if a file of that name lies beside it, as `fail 3`.
    """
    folder.mkdir()
    (folder / "data.py").write_text(FUNCTION)
    for index, batch in enumerate(batches):
        np.save(folder / f"{index:03}.npy", batch)
    return f"{folder / 'data.py'}:samples"


def ranges_of(model: Path, data: str | Path, output: Path, **options: Any) -> Ranges:
    return load_ranges(calibrate(model, str(data), output, method="minmax", **options).path)


def observed(model: Path, data: str | Path, **options: Any) -> Ranges:
    outline = read_outline(model)
    limit = options.pop("limit", None)
    return observe(outline, Data(str(data), outline.io.inputs, batch_size=1, limit=limit), **options)


def assert_equal(found: Ranges, expected: Ranges) -> None:
    assert found.samples == expected.samples
    assert found.histograms.keys() == expected.histograms.keys()
    for name, histogram in expected.histograms.items():
        again = found.histograms[name]
        assert (again.exponent, again.min, again.max) == (histogram.exponent, histogram.min, histogram.max)
        np.testing.assert_array_equal(again.counts, histogram.counts)


def plain(model: Path, names: Sequence[str], feeds: Sequence[dict[str, Array]]) -> dict[str, list[Array]]:
    """What a plain session computes, one inference at a time."""
    proto = onnx.load(model)
    present = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: dict[str, list[Array]] = {name: [] for name in names}
    for fed in feeds:
        computed = [name for name in names if name not in fed]
        for name, array in fed.items():
            if name in found:
                found[name].append(array)
        for name, array in zip(computed, session.run(computed, fed), strict=True):
            found[name].append(array)
    return found


def assert_counts(histogram: Histogram, arrays: Sequence[Array]) -> None:
    """The histogram counts the floor of each value divided by a width that the largest one decides."""
    values = np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float64)
    exponent = int(np.frexp(np.abs(values).max())[1]) - 11
    bins, counts = np.unique(np.floor(values / 2.0**exponent), return_counts=True)
    assert (histogram.exponent, histogram.min, histogram.max) == (exponent, values.min(), values.max())
    filled = np.flatnonzero(histogram.counts)
    np.testing.assert_array_equal(filled - BINS, bins)
    np.testing.assert_array_equal(histogram.counts[filled], counts)


class Interrupted:
    """A progress that interrupts after so many samples, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        self.left -= text == "calibrate"
        if self.left < 0:
            raise KeyboardInterrupt


class Listener:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.said: Said = []

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        self.said.append((text, done, total))

    def continued(self) -> list[int]:
        """After how many samples a calibration went on."""
        return [done for text, done, _ in self.said if text == f"continue after {done} samples"]


def interrupt(model: Path, data: str, checkpoint: Path, after: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        observed(
            model, data, checkpoint=checkpoint, checkpoint_every_s=0, progress=Interrupted(after), **options
        )


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions, a product and a softmax: kernels that add in an order of their own."""
    body = """
        a = Conv <pads = [1, 1, 1, 1]> (x, w1)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, w2)
        d = Add (c, b)
        e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
        f = Flatten (e)
        g = MatMul (f, w3)
        y = Softmax (g)
    """
    return save(
        tmp_path_factory.mktemp("network") / "network.onnx",
        body,
        "(float[n, 3, 6, 6] x) => (float[n, 5] y)",
        w1=normal(16, 3, 3, 3),
        w2=normal(16, 16, 3, 3),
        w3=normal(144, 5),
    )


SAMPLES = normal(COUNT, 3, 6, 6)


@pytest.fixture(scope="module")
def data(network: Path) -> str:
    """Samples for it in one file."""
    return npz(network.parent / "data.npz", x=SAMPLES)


@pytest.fixture(scope="module")
def whole(network: Path, data: str) -> Ranges:
    """Its ranges, of one run that nothing disturbed."""
    return observed(network, data, threads=1)


# Counts depend on the values alone.


@pytest.mark.parametrize("size", [1, 2, 3, 7, COUNT])
def test_ranges_do_not_depend_on_how_a_function_batches(
    network: Path, whole: Ranges, tmp_path: Path, size: int
) -> None:
    spec = function_of(tmp_path / "d", [SAMPLES[at : at + size] for at in range(0, COUNT, size)])
    assert_equal(observed(network, spec), whole)


def batches_in_any_order() -> st.SearchStrategy[tuple[list[int], list[int]]]:
    """The order of the samples, and where to cut it."""
    cuts = st.sets(st.integers(1, COUNT - 1)).map(sorted)
    return st.tuples(st.permutations(range(COUNT)), cuts)


@property_test
@given(batches_in_any_order(), st.integers(1, 3))
def test_neither_batches_nor_order_nor_threads_leave_a_trace(
    network: Path,
    whole: Ranges,
    tmp_path_factory: pytest.TempPathFactory,
    ordered: tuple[list[int], list[int]],
    threads: int,
) -> None:
    order, cuts = ordered
    spec = function_of(tmp_path_factory.mktemp("batches") / "d", np.split(SAMPLES[order], cuts))
    assert_equal(observed(network, spec, threads=threads), whole)


def test_an_npz_and_a_folder_of_the_same_samples_give_the_same(
    network: Path, data: str, whole: Ranges, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "0.npy", SAMPLES[0])
    np.save(folder / "1.npy", SAMPLES[1:6])
    np.savez_compressed(folder / "2.npz", x=SAMPLES[6:], labels=np.arange(7))
    assert_equal(observed(network, folder), whole)
    inputs = read_outline(network).io.inputs
    assert_equal(observe(network, Data(data, inputs, batch_size=5)), whole)


def test_arrays_of_any_layout_count_alike(network: Path, whole: Ranges, tmp_path: Path) -> None:
    body = """
        x = np.load(HERE / "x.npy")
        yield np.asfortranarray(x[:4])
        yield np.ascontiguousarray(x[4:9].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        yield x[9:].repeat(2, axis=0)[::2]
    """
    np.save(tmp_path / "x.npy", SAMPLES)
    head = "from pathlib import Path\nimport numpy as np\nHERE = Path(__file__).parent\n"
    (tmp_path / "data.py").write_text(f"{head}def samples():{body}")
    assert_equal(observed(network, f"{tmp_path / 'data.py'}:samples"), whole)


def test_samples_that_are_mapped_and_cannot_be_written_are_counted(
    network: Path, whole: Ranges, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", SAMPLES)
    body = f"    yield from np.split(np.load({str(tmp_path / 'x.npy')!r}, mmap_mode='r'), [1, 4])"
    (tmp_path / "data.py").write_text(f"import numpy as np\ndef samples():\n{body}\n")
    assert_equal(observed(network, f"{tmp_path / 'data.py'}:samples"), whole)


def test_a_model_with_large_activations_gets_fewer_workers_and_the_same_counts(
    network: Path, data: str, whole: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qcompile.calibration.workers.IN_FLIGHT_BYTES", 1)
    assert_equal(observed(network, data, threads=3), whole)


def test_the_same_calibration_gives_the_same_bytes(network: Path, data: str, tmp_path: Path) -> None:
    files = [
        calibrate(network, data, tmp_path / f"{threads}.ranges", threads=threads).path.read_bytes()
        for threads in (1, 2, 0)
    ]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
def test_histograms_count_what_onnx_runtime_computes_for_each_sample(
    tiny_file: MakePath, samples: MakePath, name: str
) -> None:
    model, path = tiny_file(name), samples(name, 8)
    found = observed(model, path)
    assert sorted(found.histograms) == sorted(choose_taps(onnx.load(model)).names)
    assert "labels" not in found.histograms
    with np.load(path) as arrays:
        feeds = [{"x": row[None]} for row in arrays["x"]]
    for tensor, arrays in plain(model, list(found.histograms), feeds).items():
        assert_counts(found.histograms[tensor], arrays)


def test_the_network_of_these_tests_is_counted_right(network: Path, whole: Ranges) -> None:
    expected = plain(network, list(whole.histograms), [{"x": sample[None]} for sample in SAMPLES])
    assert sorted(expected) == ["b", "c", "d", "g", "x", "y"]
    for tensor, arrays in expected.items():
        assert_counts(whole.histograms[tensor], arrays)


# Shards.


@property_test
@given(st.integers(1, 6), st.randoms(use_true_random=False), st.integers(1, 2), st.booleans())
def test_shards_merged_in_any_order_are_the_file_of_the_whole(
    network: Path,
    data: str,
    tmp_path_factory: pytest.TempPathFactory,
    shards: int,
    random: Any,
    threads: int,
    by_function: bool,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    spec = function_of(folder / "d", np.split(SAMPLES, [4, 5, 11])) if by_function else data
    whole = calibrate(network, spec, folder / "whole", method="minmax").path
    files = [
        calibrate(
            network, spec, folder / str(part), method="minmax", shard=f"{part}/{shards}", threads=threads
        ).path
        for part in range(1, shards + 1)
    ]
    random.shuffle(files)
    merged = merge_files(files, folder / "merged").path
    assert merged.read_bytes() == whole.read_bytes()


def test_the_parts_of_a_shard_are_every_so_many_samples(network: Path, data: str) -> None:
    for part in (1, 2, 3):
        found = observed(network, data, shard=Shard(part, 3))
        assert_counts(found.histograms["x"], [SAMPLES[part - 1 :: 3]])
        assert found.samples == len(SAMPLES[part - 1 :: 3])


def test_some_shards_are_not_the_whole_and_say_so(network: Path, data: str) -> None:
    first, last = (observed(network, data, shard=Shard(part, 3)) for part in (1, 3))
    first.merge(last)
    (portion,) = first.portions.values()
    assert (portion.samples, portion.shards, portion.parts) == (9, 3, (1, 3))
    assert "1, 3 of 3 parts" in first.data


def test_a_shard_without_samples_is_a_warning_and_merges(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, 3] x) => (float[n, 3] y)")
    spec = npz(tmp_path / "data.npz", x=normal(3, 3))
    shards = [calibrate(model, spec, tmp_path / str(part), shard=f"{part}/5") for part in range(1, 6)]
    empty = [not load_ranges(shard.path).samples for shard in shards]
    assert empty == [False, False, False, True, True]
    for shard, nothing in zip(shards, empty, strict=True):
        assert any("no sample was observed" in text for text in shard.manifest.warnings) == nothing
    merged = merge_files([shard.path for shard in reversed(shards)], tmp_path / "merged")
    whole = calibrate(model, spec, tmp_path / "whole")
    assert merged.path.read_bytes() == whole.path.read_bytes()
    assert merged.manifest.warnings == whole.manifest.warnings


def test_a_tensor_that_is_empty_in_one_shard_only_is_merged(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, w] x) => (float[n, w] y)")
    folder = tmp_path / "folder"
    folder.mkdir()
    for index, width in enumerate((0, 3, 0, 5)):
        np.save(folder / f"{index}.npy", normal(1, width))
    files = [calibrate(model, str(folder), tmp_path / str(p), shard=f"{p}/2").path for p in (1, 2)]
    assert list(load_ranges(files[0]).names()) == []
    whole = calibrate(model, str(folder), tmp_path / "whole").path
    assert load_ranges(whole).histograms["y"].total == 8
    for number, order in enumerate((files, files[::-1])):
        assert merge_files(order, tmp_path / f"m{number}").path.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("text", ["1/1", "2/8", " 8/8 ", "1/999999999"])
def test_a_shard_is_spelled_part_of_parts(text: str) -> None:
    assert str(parse_shard(text)) == text.strip()


WRONG_SHARDS = ["", "2", "/", "0/2", "3/2", "1/0", "0/0", "-1/2", "a/b", "1/2/3", "1.0/2", "1 of 2", "1/1e3"]


@pytest.mark.parametrize("text", [*WRONG_SHARDS, "1/99999999999999999999"])
def test_a_misspelled_shard_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="PART/PARTS is required") as caught:
        parse_shard(text)
    assert caught.value.data["option"] == "--shard"
    assert repr(text) in caught.value.message


# Interruptions.


@property_test
@given(
    st.lists(st.integers(0, COUNT), min_size=1, max_size=4),
    st.sampled_from([Shard(), Shard(1, 2), Shard(2, 3)]),
    st.integers(1, 2),
    st.booleans(),
)
def test_interruptions_leave_no_trace(
    network: Path,
    data: str,
    tmp_path_factory: pytest.TempPathFactory,
    after: list[int],
    shard: Shard,
    threads: int,
    by_function: bool,
) -> None:
    folder = tmp_path_factory.mktemp("interrupted")
    spec = function_of(folder / "d", np.split(SAMPLES, [3, 4, 10])) if by_function else data
    expected = observed(network, spec, shard=shard, threads=1)
    checkpoint = folder / "checkpoint"
    for count in after:
        try:
            observed(
                network,
                spec,
                shard=shard,
                threads=threads,
                checkpoint=checkpoint,
                checkpoint_every_s=0,
                progress=Interrupted(count),
            )
        except KeyboardInterrupt:
            continue
    found = observed(network, spec, shard=shard, threads=threads, checkpoint=checkpoint)
    assert_equal(found, expected)
    assert found.portions == expected.portions


@pytest.mark.parametrize("after", [1, 2, 7, COUNT - 1])
def test_an_interrupted_calibration_goes_on_where_it_was(
    network: Path, data: str, whole: Ranges, tmp_path: Path, after: int
) -> None:
    interrupt(network, data, tmp_path / "checkpoint", after)
    heard = Listener()
    found = observed(network, data, checkpoint=tmp_path / "checkpoint", progress=heard)
    assert heard.continued() == [after]
    assert heard.said[-1] == ("calibrate", COUNT, COUNT)
    assert_equal(found, whole)


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_data_that_fails_midway_can_be_gone_on_with(
    network: Path, whole: Ranges, tmp_path: Path, batch: int
) -> None:
    spec = function_of(tmp_path / "d", np.split(SAMPLES, [2, 3, 9]))
    checkpoint, trouble = tmp_path / "checkpoint", tmp_path / "d" / f"fail {batch}"
    trouble.touch()
    for _ in range(2):
        with pytest.raises(DataError, match="the disk is gone"):
            observed(network, spec, checkpoint=checkpoint, checkpoint_every_s=0)
    trouble.unlink()
    heard = Listener()
    found = observed(network, spec, checkpoint=checkpoint, progress=heard)
    assert heard.continued() == [[], [2], [3], [9]][batch]
    assert_equal(found, whole)


DRIVER = """
import sys
from pathlib import Path
from qcompile.calibration import Data, observe
from qcompile.model.outline import read_outline

outline = read_outline(Path(sys.argv[1]))
data = Data(sys.argv[2], outline.io.inputs)
observe(outline, data, threads=2, checkpoint=Path(sys.argv[3]), checkpoint_every_s=0)
"""


def kill_where_it_hangs(command: Sequence[str], folder: Path, temporary: Path) -> None:
    """Run a command until its data function hangs, then kill it."""
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + DEADLINE_S
        while not (folder / "hanging").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
    finally:
        process.kill()
        _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.parametrize("batch", [1, 4])
def test_a_killed_process_leaves_a_checkpoint_that_the_next_goes_on_from(
    network: Path, whole: Ranges, tmp_path: Path, batch: int
) -> None:
    spec = function_of(tmp_path / "d", np.split(SAMPLES, [2, 3, 7, 8]))
    trouble = tmp_path / "d" / f"hang {batch}"
    trouble.touch()
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-c", DRIVER, str(network), spec, str(checkpoint)]
    kill_where_it_hangs(command, tmp_path / "d", tmp_path / "tmp")
    trouble.unlink()
    heard = Listener()
    found = observed(network, spec, checkpoint=checkpoint, progress=heard)
    assert heard.continued() == [{1: 2, 4: 8}[batch]]
    assert_equal(found, whole)


def command_line(network: Path, spec: str, output: Path) -> list[str]:
    command = [sys.executable, "-m", "qcompile", "calibrate", str(network), "--data", spec]
    return [*command, "-o", str(output), "--method", "minmax", "--threads", "2", "-v"]


@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_line_killed_and_run_again_gives_the_file_of_an_undisturbed_run(
    network: Path, tmp_path: Path, waits: bool
) -> None:
    """Checkpoints are ten seconds apart: without waiting, it begins anew."""
    spec = function_of(tmp_path / "d", np.split(SAMPLES, [2, 3, 7, 8]))
    troubles = [tmp_path / "d" / "hang 4", *([tmp_path / "d" / "wait 2"] if waits else [])]
    out = tmp_path / "out"
    out.mkdir()
    for trouble in troubles:
        trouble.touch()
    kill_where_it_hangs(command_line(network, spec, out / "model.ranges"), tmp_path / "d", tmp_path / "tmp")
    assert not (out / "model.ranges").exists()
    assert len(list(out.iterdir())) == waits
    for trouble in troubles:
        trouble.unlink()
    again = subprocess.run(
        command_line(network, spec, out / "model.ranges"), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert again.returncode == 0, again.stderr
    assert ("continue after" in again.stderr) == waits
    assert sorted(path.name for path in out.iterdir()) == ["model.ranges", "model.ranges.json"]
    subprocess.run(
        command_line(network, spec, tmp_path / "undisturbed" / "model.ranges"),
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    undisturbed = tmp_path / "undisturbed" / "model.ranges"
    assert (out / "model.ranges").read_bytes() == undisturbed.read_bytes()


def test_a_checkpoint_of_something_else_is_not_gone_on_from(network: Path, data: str, tmp_path: Path) -> None:
    other = onnx.load(network)
    other.graph.node[1].name = "another"
    onnx.save(other, tmp_path / "other.onnx")
    other_data = npz(tmp_path / "other.npz", x=SAMPLES[::-1])
    checkpoint = tmp_path / "checkpoint"
    cases: list[tuple[Path, str, dict[str, Any]]] = [
        (network, other_data, {}),
        (tmp_path / "other.onnx", data, {}),
        (network, data, {"shard": Shard(1, 2)}),
        (network, data, {"limit": 9}),
        (network, data, {"wanted": {"x", "y"}}),
    ]
    for model, spec, options in cases:
        checkpoint.unlink(missing_ok=True)
        interrupt(network, data, checkpoint, 4)
        heard = Listener()
        found = observed(model, spec, checkpoint=checkpoint, progress=heard, **options)
        assert heard.continued() == []
        assert_equal(found, observed(model, spec, **options))


def test_another_number_of_threads_may_go_on(network: Path, data: str, whole: Ranges, tmp_path: Path) -> None:
    interrupt(network, data, tmp_path / "checkpoint", 5, threads=2)
    heard = Listener()
    found = observed(network, data, checkpoint=tmp_path / "checkpoint", progress=heard, threads=1)
    assert heard.continued() == [5]
    assert_equal(found, whole)


@pytest.mark.parametrize("size", [0, 1, 8, 9, 100, 2000, 50_000, -1])
def test_a_checkpoint_that_is_cut_off_is_begun_anew(
    network: Path, data: str, whole: Ranges, tmp_path: Path, size: int
) -> None:
    checkpoint = tmp_path / "checkpoint"
    interrupt(network, data, checkpoint, 6)
    checkpoint.write_bytes(checkpoint.read_bytes()[:size])
    heard = Listener()
    assert_equal(observed(network, data, checkpoint=checkpoint, progress=heard), whole)
    assert heard.continued() == []


@pytest.mark.parametrize(
    "metadata", [None, {"qcompile": "{"}, {"qcompile": "[]"}, {"qcompile": '{"key": 1}'}]
)
def test_a_file_that_is_no_checkpoint_is_begun_anew(
    network: Path, data: str, whole: Ranges, tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "checkpoint", metadata=metadata)
    assert_equal(observed(network, data, checkpoint=tmp_path / "checkpoint"), whole)
    (tmp_path / "checkpoint").write_bytes(b"no safetensors at all")
    assert_equal(observed(network, data, checkpoint=tmp_path / "checkpoint"), whole)


def test_the_checkpoint_is_used_and_removed_at_the_end(
    network: Path, data: str, whole: Ranges, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "elsewhere" / "checkpoint"
    interrupt(network, data, checkpoint, 6)
    heard = Listener()
    found = ranges_of(network, data, tmp_path / "r", checkpoint=checkpoint, progress=heard)
    assert heard.continued() == [6]
    assert_equal(found, whole)
    assert not checkpoint.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "r", "r.json"]


def test_the_checkpoint_lies_beside_the_output_where_no_place_is_given(
    network: Path, data: str, tmp_path: Path
) -> None:
    interrupt(network, data, tmp_path / ".r.checkpoint", 6)
    heard = Listener()
    calibrate(network, data, tmp_path / "r", progress=heard)
    assert heard.continued() == [6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.json"]


def test_a_calibration_can_be_begun_anew(network: Path, data: str, whole: Ranges, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    interrupt(network, data, checkpoint, 6)
    heard = Listener()
    found = ranges_of(network, data, tmp_path / "r", checkpoint=checkpoint, resume=False, progress=heard)
    assert heard.continued() == []
    assert_equal(found, whole)
    assert not checkpoint.exists()


def test_a_finished_calibration_that_is_repeated_counts_once(
    network: Path, data: str, whole: Ranges, tmp_path: Path
) -> None:
    """A kill between the last sample and the ranges file leaves a checkpoint of all samples."""
    checkpoint = tmp_path / "checkpoint"
    for _ in range(3):
        found = observed(network, data, checkpoint=checkpoint, checkpoint_every_s=0)
        assert_equal(found, whole)


# What is no batch axis: samples that cannot be told apart are run as they come.

ROWS_MEET = {
    "attention": ("t = Transpose(x) m = MatMul(x, t) s = Softmax(m) y = MatMul(s, x)", {}),
    "softmax over the first axis": ("a = Add(x, x) s = Softmax <axis = 0> (a) y = Mul(s, x)", {}),
    "distance from the mean": ("m = ReduceMean <axes = [0]> (x) d = Sub(x, m) y = Mul(d, d)", {}),
    "running sum": ("s = CumSum(x, zero) y = Mul(s, x)", {"zero": np.array(0, np.int64)}),
    "time": (
        "u = Unsqueeze(x, one) h = RNN <hidden_size = 4> (u, w, r) q = Squeeze(h, one) y = MatMul(q, v)",
        {"one": np.array([1]), "w": normal(1, 4, 4), "r": normal(1, 4, 4), "v": normal(4, 4)},
    ),
}


@pytest.mark.parametrize("name", ROWS_MEET)
def test_a_model_whose_first_axis_is_no_batch_axis_is_run_on_whole_batches(name: str, tmp_path: Path) -> None:
    body, weights = ROWS_MEET[name]
    if name == "time":
        body = body.replace("q = Squeeze(h, one)", "q = Squeeze(h, both)")
        weights = {**weights, "both": np.array([1, 2])}
    model = save(tmp_path / "m.onnx", body, "(float[n, 4] x) => (float[k, l] y)", **weights)
    batches = [normal(rows, 4) for rows in (6, 5, 1, 3)]
    found = observed(model, function_of(tmp_path / "d", batches), threads=2)
    assert found.samples == 15
    for tensor, arrays in plain(model, list(found.histograms), [{"x": batch} for batch in batches]).items():
        assert_counts(found.histograms[tensor], arrays)


def test_inputs_that_differ_in_their_first_axis_are_fed_as_they_come(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx",
        "m = MatMul(x, t) y = Relu(m)",
        "(float[n, 3] x, float[k, l] t) => (float[n, l] y)",
    )
    (tmp_path / "data.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    for scale in (1, 2):\n"
        "        yield np.full((5, 3), scale, np.float32), np.eye(3, dtype=np.float32)\n"
    )
    found = observed(model, f"{tmp_path / 'data.py'}:samples")
    assert found.samples == 10
    assert_counts(found.histograms["t"], [np.eye(3)] * 2)
    assert_counts(found.histograms["y"], [np.full((5, 3), scale) for scale in (1, 2)])


def test_a_fixed_batch_is_fed_whole(tmp_path: Path) -> None:
    body = "t = Transpose(x) m = MatMul(x, t) y = Relu(m)"
    model = save(tmp_path / "m.onnx", body, "(float[4, 3] x) => (float[4, 4] y)")
    x = normal(12, 3)
    for spec in (npz(tmp_path / "x.npz", x=x), function_of(tmp_path / "d", np.split(x, 3))):
        found = observed(model, spec)
        assert found.samples == 12
        feeds = [{"x": part} for part in np.split(x, 3)]
        for tensor, arrays in plain(model, list(found.histograms), feeds).items():
            assert_counts(found.histograms[tensor], arrays)


def test_scalars_and_integers_are_fed_as_they_come(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx",
        "g = Gather(x, ids) m = Mul(g, s) y = Relu(m)",
        "(float[n, 3] x, int64[k] ids, float s) => (float[k, 3] y)",
    )
    (tmp_path / "data.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    for scale in (1, 2):\n"
        "        yield np.full((4, 3), 5, np.float32), np.array([0, 3]), np.float32(scale)\n"
    )
    found = observed(model, f"{tmp_path / 'data.py'}:samples")
    assert found.samples == 8
    assert found.skipped == {"ids": "it is int64, not a float"}
    assert_counts(found.histograms["s"], [np.array([1.0, 2.0])])
    assert_counts(found.histograms["m"], [np.full((2, 3), 5.0), np.full((2, 3), 10.0)])
    assert "ids" not in found.histograms


def test_samples_of_different_shapes_are_counted_together(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, w] x) => (float[n, w] y)")
    batches = [normal(2, 3), normal(4, 1), normal(1, 7), normal(2, 0), normal(3, 20)]
    spec = function_of(tmp_path / "d", batches)
    folder = tmp_path / "ragged"
    folder.mkdir()
    for index, batch in enumerate(batches):
        np.save(folder / f"{index}.npy", batch)
    for found in (observed(model, spec), observed(model, folder, threads=2)):
        assert found.samples == 12
        assert_counts(found.histograms["x"], batches)
        assert_counts(found.histograms["y"], [np.maximum(batch, 0) for batch in batches])


def test_a_tensor_that_is_empty_in_every_sample_has_no_range(tmp_path: Path) -> None:
    body = """
        zero = Constant <value = int64[1] {0}> ()
        s = Slice(x, zero, zero, zero)
        y = Relu(x)
        z = Relu(s)
    """
    model = save(tmp_path / "m.onnx", body, "(float[n, 4] x) => (float[n, 4] y, float[m, 4] z)")
    for size in (1, 3):
        spec = function_of(tmp_path / f"d{size}", np.split(normal(3, 4), 3 // size))
        found = ranges_of(model, spec, tmp_path / "r")
        assert sorted(found.names()) == ["x", "y"]
        for name in ("s", "z"):
            with pytest.raises(CalibrationError, match=f"tensor '{name}' .*empty in every sample"):
                found.amax(name)


# What is not right with the samples.


@pytest.mark.parametrize(("bad", "what"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("threads", [1, 2])
def test_nan_in_the_data_is_an_error_naming_input_and_sample(
    tiny_file: MakePath, tmp_path: Path, bad: float, what: str, threads: int
) -> None:
    x = np.zeros((9, 16), np.float32)
    x[5, 3] = bad
    spec = npz(tmp_path / "data.npz", x=x)
    with pytest.raises(DataError, match=rf"data\.npz\[5:6\]: input 'x' holds {what}") as caught:
        calibrate(tiny_file("mlp"), spec, tmp_path / "mlp.ranges", threads=threads)
    assert caught.value.data == {"tensor": "x", "sample": "data.npz[5:6]"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "mlp.onnx"]
    by_function = function_of(tmp_path / "d", np.split(x, [4]))
    with pytest.raises(DataError, match=rf"samples batch 1 sample 1: input 'x' holds {what}"):
        observed(tiny_file("mlp"), by_function, threads=threads)


def test_nan_in_an_input_that_is_not_observed_is_an_error_too(tmp_path: Path) -> None:
    signature = "(float[n] x, float[n] z) => (float[n] y, float[n] e)"
    model = save(tmp_path / "m.onnx", "e = Exp(z) y = Relu(x)", signature)
    x, z = np.zeros(2, np.float32), np.array([0, np.nan], np.float32)
    with pytest.raises(DataError, match=r"d\.npz\[1:2\]: input 'z' holds NaN"):
        observed(model, npz(tmp_path / "d.npz", x=x, z=z))


def test_nan_in_the_first_samples_is_an_error_whatever_the_batch(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, 2] x) => (float[n, 2] y)")
    for number, size in enumerate((1, 2, 4)):
        x = np.ones((4, 2), np.float32)
        x[0, 1] = np.nan
        with pytest.raises(DataError, match=r"samples batch 0.*: input 'x' holds NaN"):
            observed(model, function_of(tmp_path / f"d{number}", np.split(x, 4 // size)))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_that_overflows_is_an_error_naming_tensor_and_sample(tmp_path: Path, threads: int) -> None:
    model = save(tmp_path / "m.onnx", "e = Exp(x) y = Add(e, x)", "(float[n, 2] x) => (float[n, 2] y)")
    x = np.ones((6, 2), np.float32)
    x[3, 1] = 1000
    spec = npz(tmp_path / "data.npz", x=x)
    with pytest.raises(CalibrationError, match="tensor 'e' holds infinity at") as caught:
        calibrate(model, spec, tmp_path / "r", threads=threads)
    assert caught.value.data == {"tensor": "e", "sample": "data.npz[3:4]"}
    assert "the input is finite" in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "m.onnx"]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_earliest_bad_sample_is_the_one_that_is_named(tmp_path: Path, threads: int) -> None:
    """The earliest takes longest: others are found to be bad before it."""
    model = save(tmp_path / "m.onnx", "e = Exp(x) y = Add(e, x)", "(float[n, w] x) => (float[n, w] y)")
    small = np.zeros((1, 1), np.float32)
    long = np.zeros((1, 300_000), np.float32)
    long[0, -1] = 1000
    spec = function_of(tmp_path / "d", [small, small, small, long, small + np.nan, small + np.inf, small])
    for _ in range(5):
        with pytest.raises(CalibrationError, match="tensor 'e' holds infinity at samples batch 3,"):
            observed(model, spec, threads=threads)


def test_a_sample_on_which_the_model_fails_is_named(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx",
        "g = Gather(x, ids) y = Sigmoid(g)",
        "(float[n, 4] x, int64[n] ids) => (float[n, 4] y)",
    )
    spec = npz(tmp_path / "data.npz", x=np.ones((3, 4), np.float32), ids=np.array([0, 0, 7]))
    with pytest.raises(DataError, match=r"data\.npz\[2:3\]: the model failed on it"):
        calibrate(model, spec, tmp_path / "r")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_model_that_fails_on_the_first_sample_names_it(tmp_path: Path, size: int) -> None:
    body = "r = Reshape(x, s) y = Sigmoid(r)"
    model = save(
        tmp_path / "m.onnx", body, "(float[n, w] x) => (float[k, 3] y)", s=np.array([-1, 3], np.int64)
    )
    spec = function_of(tmp_path / "d", [normal(size, 4 if size != 4 else 5)])
    with pytest.raises(DataError, match="samples batch 0: the model failed on it"):
        observed(model, spec)


def test_data_of_another_shape_midway_is_an_error_naming_it(network: Path, tmp_path: Path) -> None:
    spec = function_of(tmp_path / "d", [SAMPLES[:3], SAMPLES[3:5, :2]])
    with pytest.raises(DataError, match="samples batch 1: input 'x' has shape 2x2x6x6"):
        observed(network, spec)


# What is told.


def totals(said: Said) -> tuple[list[int], set[int | None]]:
    """How many samples were done, each time, and the totals told."""
    return [done for text, done, _ in said if text == "calibrate"], {
        total for text, _, total in said if text == "calibrate"
    }


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, COUNT),
        ({"limit": 5}, 5),
        ({"limit": 100}, COUNT),
        ({"shard": Shard(2, 4)}, 3),
        ({"shard": Shard(1, 4)}, 4),
        ({"shard": Shard(3, 4), "limit": 6}, 1),
        ({"shard": Shard(14, 20)}, 0),
    ],
)
def test_progress_is_told_with_the_number_of_samples_there_are(
    network: Path, data: str, options: dict[str, Any], total: int
) -> None:
    heard = Listener()
    observed(network, data, progress=heard, threads=2, **options)
    done, known = totals(heard.said)
    assert known == {total}
    assert done == sorted(done)
    assert done[-1] == total
    assert all(0 <= count <= total for count in done)


def test_progress_over_a_function_has_no_total_but_the_limit(network: Path, tmp_path: Path) -> None:
    spec = function_of(tmp_path / "d", np.split(SAMPLES, [5]))
    for limit, total in ((None, None), (9, 9)):
        heard = Listener()
        observed(network, spec, progress=heard, limit=limit)
        done, known = totals(heard.said)
        assert known == {total}
        assert done[-1] == (total or COUNT)


def test_every_step_is_told(network: Path, data: str, tmp_path: Path) -> None:
    heard = Listener()
    calibrate(network, data, tmp_path / "r", progress=heard)
    texts = [text for text, _ in itertools.groupby(text for text, _, _ in heard.said)]
    assert texts == ["prepare the model", "calibrate", "choose thresholds"]


def test_the_artifact_says_what_was_observed(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model = tiny_file("mlp")
    artifact = calibrate(
        model,
        str(samples("mlp", 20)),
        tmp_path / "mlp.ranges",
        method="percentile:99.9",
        samples=12,
        shard="1/2",
    )
    assert load_artifact(artifact.path).manifest.as_json() == artifact.manifest.as_json()
    manifest = artifact.manifest
    assert (manifest.kind, manifest.stage, manifest.sources["model"]) == (
        "ranges",
        "calibrate",
        fingerprint(model),
    )
    assert manifest.options == {"method": "percentile:99.9", "shard": "1/2"}
    assert manifest.proof["samples"] == 6
    assert "1 of 2 parts" in manifest.sources["data"]
    ranges = load_ranges(artifact.path)
    assert (str(ranges.method), ranges.samples) == ("percentile:99.9", 6)
    assert manifest.proof["tensors"] == len(ranges.histograms)


def test_which_data_was_seen_is_kept_apart_from_how_much_of_it(network: Path, data: str) -> None:
    part, rest = observed(network, data, limit=5), observed(network, data)
    assert part.data != rest.data
    assert part.model == rest.model == fingerprint(network)


def test_data_may_be_given_already_opened(network: Path, data: str, tmp_path: Path) -> None:
    outline = read_outline(network)
    opened = calibrate(outline, Data(data, outline.io.inputs, batch_size=3, limit=7), tmp_path / "1")
    spelled = calibrate(network, data, tmp_path / "2", samples=7)
    assert opened.path.read_bytes() == spelled.path.read_bytes()


def test_only_wanted_tensors_are_observed(network: Path, data: str, whole: Ranges) -> None:
    found = observed(network, data, wanted={"y", "c", "f"})
    assert sorted(found.histograms) == ["c", "d", "y"]
    assert found.shared == {"f": ("d",)}
    for name, histogram in found.histograms.items():
        np.testing.assert_array_equal(histogram.counts, whole.histograms[name].counts)


# What cannot be done.


@pytest.mark.parametrize(
    ("body", "signature", "wanted"),
    [
        ("y = Add(x, x)", "(int64[n] x) => (int64[n] y)", None),
        ("y = Exp(x)", "(float[n] x) => (float[n] y)", None),
        ("y = Relu(x)", "(float[n] x) => (float[n] y)", set[str]()),
    ],
)
def test_a_model_without_activations_to_observe_cannot_be_calibrated(
    tmp_path: Path, body: str, signature: str, wanted: set[str] | None
) -> None:
    model = save(tmp_path / "m.onnx", body, signature)
    dtype = np.int64 if "int64" in signature else np.float32
    with pytest.raises(CalibrationError, match=r"m\.onnx: .*nothing to calibrate"):
        calibrate(model, npz(tmp_path / "d.npz", x=np.arange(3).astype(dtype)), tmp_path / "r", wanted=wanted)


def test_a_model_that_onnx_runtime_refuses_is_named(tmp_path: Path) -> None:
    graph = onnx.load(save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n] x) => (float[n] y)"))
    graph.graph.node.append(onnx.helper.make_node("NoSuchOperator", ["y"], ["z"]))
    onnx.save(graph, tmp_path / "m.onnx")
    spec = npz(tmp_path / "d.npz", x=np.ones(3, np.float32))
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX Runtime refuses it"):
        calibrate(tmp_path / "m.onnx", spec, tmp_path / "r")


def test_wrong_options_are_refused_before_any_work(network: Path, data: str, tmp_path: Path) -> None:
    heard = Listener()
    with pytest.raises(InvalidOption, match="method 'kl'"):
        calibrate(network, data, tmp_path / "r", method="kl", progress=heard)
    with pytest.raises(InvalidOption, match="shard '3/2'"):
        calibrate(network, data, tmp_path / "r", shard="3/2", progress=heard)
    with pytest.raises(InvalidOption, match="at least 1 is required"):
        calibrate(network, data, tmp_path / "r", samples=0, progress=heard)
    with pytest.raises(MissingFile):
        calibrate(tmp_path / "none.onnx", data, tmp_path / "r", progress=heard)
    with pytest.raises(MissingFile):
        calibrate(network, str(tmp_path / "none.npz"), tmp_path / "r", progress=heard)
    assert heard.said == []
    assert list(tmp_path.iterdir()) == []

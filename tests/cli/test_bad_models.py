"""Damaged, hostile or changed inputs are refused by every verb: one message, exit code 1, no file left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import MakePath, Qc
from mode_models import normal, written
from onnx import TensorProto, helper

from qcompile.cli import main
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.compiler.simplify.simplify import simplify
from qcompile.core.artifact import Manifest, commit
from qcompile.core.files import manifest_path, writing
from qcompile.engines import engine

Printed = Callable[..., tuple[int, str]]
RTX = ["--target", "tensorrt-rtx", "--gpu", "sm86", "-o", "o.engine"]
VERBS: list[list[str]] = [
    ["inspect", "m.onnx"],
    ["export", "m.onnx", "-o", "o.onnx"],
    ["simplify", "m.onnx", "-o", "o.onnx"],
    ["calibrate", "m.onnx", "--data", "d.npz", "-o", "o.ranges"],
    ["quantize", "m.onnx", "-o", "o.onnx", "--mode", "dynamic"],
    ["build", "m.onnx", "--target", "onnxruntime", "-o", "o.onnx"],
    ["build", "m.onnx", "--target", "openvino", "-o", "o.onnx"],
    ["build", "m.onnx", *RTX],
    ["build", "m.onnx", *RTX, "--dry-run"],
    ["bench", "m.onnx", "--baseline", "m.onnx", "--max-time", "0.1"],
    ["bench", "good.onnx", "m.onnx", "--baseline", "good.onnx", "--max-time", "0.1"],
    ["diff", "m.onnx", "good.onnx"],
    ["diff", "good.onnx", "m.onnx"],
    ["diff", "--layers", "m.onnx", "m.onnx", "--data", "d.npz"],
    ["tune", "m.onnx", "--data", "d.npz", "-o", "tuned", "--max-drop", "1"],
    ["package", "triton", "m.onnx", "--name", "n", "-o", "repo"],
    ["init", "m.onnx", "--data", "d.npz", "-o", "r.toml"],
    ["auto", "m.onnx", "--data", "d.npz", "-o", "auto", "--max-drop", "1"],
]


def _sequence(model: onnx.ModelProto) -> None:
    inner = onnx.TypeProto()
    inner.CopyFrom(model.graph.output[0].type)
    model.graph.output[0].type.sequence_type.elem_type.CopyFrom(inner)


def _recursive(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("again", ["u"], ["v"], domain="own")]
    model.functions.append(helper.make_function("own", "again", ["u"], ["v"], nodes, opsets))


def _elsewhere(model: onnx.ModelProto, location: str) -> None:
    tensor(model).ClearField("raw_data")
    tensor(model).data_location = TensorProto.EXTERNAL
    tensor(model).external_data.add(key="location", value=location)


def tensor(model: onnx.ModelProto) -> TensorProto:
    return model.graph.initializer[0]


def batch(model: onnx.ModelProto) -> onnx.TensorShapeProto.Dimension:
    return model.graph.input[0].type.tensor_type.shape.dim[0]


CASES: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "a sequence": (_sequence, "output 'y' is a sequence; only tensors are supported"),
    "a recursive function": (_recursive, "own::again -> own::again"),
    "the memory of this process": (
        lambda model: _elsewhere(model, "/proc/self/mem"),
        "external data '/proc/self/mem' of tensor 'w1': is an absolute path",
    ),
    "a link": (lambda model: _elsewhere(model, "link"), "external data 'link' of tensor 'w1': is a link to"),
    "short data": (
        lambda model: setattr(tensor(model), "raw_data", b"123"),
        "tensor 'w1' of shape 16x32 holds 3 bytes; 2048 are required",
    ),
    "no batch": (
        lambda model: setattr(batch(model), "dim_value", 0),
        "input 'x' has an axis of extent 0; 1 or more is required",
    ),
    **{f"cut off at {size}": (lambda _: None, "m.onnx: ") for size in (0, 900)},
}


@pytest.mark.parametrize("case", CASES)
def test_every_verb_refuses_it_in_one_message(
    case: str,
    tiny: Callable[..., onnx.ModelProto],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, expected = CASES[case]
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "secret").write_bytes(bytes(4096))
    Path("link").symlink_to(tmp_path / "secret")
    onnx.save(tiny("mlp"), "good.onnx")
    np.savez("d.npz", x=np.ones((4, 16), np.float32))
    model = tiny("mlp")
    change(model)
    size = int(case.split()[-1]) if case.startswith("cut off") else None
    Path("m.onnx").write_bytes(model.SerializeToString()[:size])
    before = sorted(path.name for path in folder.iterdir())
    for words in VERBS:
        with pytest.raises(SystemExit) as ended:
            main([*words, "-q"])
        said = capsys.readouterr().err
        assert ended.value.code == 1, (words, said)
        assert said.count("error: ") == 1, (words, said)
        assert expected in said, words
        assert "unexpected" not in said, words
        left = sorted(path.name for path in folder.iterdir() if path.name not in ("tuned", "auto"))
        assert left == before, words


RECIPE = """
version = 1
name = "net"
[model]
source = "{model}"
simplify = false
[calibrate]
ranges = "{ranges}"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
"""


SMALL = """(float[batch,4,8,8] x) => (float[batch,4] y) { [conv] c = Conv <pads = [1,1,1,1]> (x, w)
    [relu] r = Relu (c) [mean] m = GlobalAveragePool (r) [flat] y = Flatten (m) }"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and ranges, each with its manifest, and samples."""
    folder = tmp_path_factory.mktemp("made")
    written(folder / "float.onnx", SMALL, w=normal(4, 4, 3, 3, scale=1))
    x = np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype(np.float32)
    np.savez(folder / "x.npz", x=x, labels=np.zeros(8, np.int64))
    simplify(folder / "float.onnx", folder / "m.onnx")
    calibrate(folder / "m.onnx", str(folder / "x.npz"), folder / "m.ranges")
    with writing(folder / "m.engine") as path:
        path.write_bytes(b"ftrt, as far as a digest goes")
        commit(path, Manifest(kind="engine", stage="build", target="tensorrt", precision="fp32"))
    (folder / "recipe.toml").write_text(RECIPE.format(model="m.onnx", ranges="m.ranges"))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working folder."""
    copy = tmp_path / "work"
    shutil.copytree(made, copy)
    monkeypatch.chdir(copy)
    return copy


def change(file: str) -> None:
    """Flip one bit of the last byte."""
    content = bytearray(Path(file).read_bytes())
    content[-1] ^= 1
    Path(file).write_bytes(content)


COMMANDS = {
    "m.onnx": [
        "export m.onnx -o o.onnx",
        "simplify m.onnx -o o.onnx",
        "calibrate m.onnx --data x.npz -o o.ranges",
        "quantize m.onnx --ranges m.ranges -o o.onnx",
        "quantize m.onnx --precision fp16 -o o.onnx",
        "build m.onnx --target onnxruntime -o o.onnx",
        "build m.onnx --target openvino -o o.onnx",
        "tune m.onnx --data x.npz --max-drop 1 -o o",
        "init m.onnx --data x.npz -o o.toml",
        "auto m.onnx --data x.npz --max-drop 1 -o o",
        "bench m.onnx --baseline float.onnx --max-time 0.1",
        "bench float.onnx --baseline m.onnx --max-time 0.1",
        "diff float.onnx m.onnx",
        "diff m.onnx float.onnx --layers",
        "package triton m.onnx --name net -o o",
        "run recipe.toml",
        "run recipe.toml --dry-run",
    ],
    "m.ranges": [
        "quantize m.onnx --ranges m.ranges -o o.onnx",
        "build m.onnx --target onnxruntime --precision int8 --ranges m.ranges -o o.onnx",
        "ranges show m.ranges",
        "ranges merge m.ranges -o o.ranges",
        "ranges cache m.ranges --tensorrt 8.5.3 -o o.cache",
        "run recipe.toml",
        "run recipe.toml --dry-run",
    ],
    "m.engine": [
        "bench m.engine --baseline float.onnx --max-time 0.1",
        "diff float.onnx m.engine",
        "refit m.engine float.onnx -o o.engine",
        "package triton m.engine --name net -o o",
        "package ep-context m.engine -o o.onnx",
    ],
}


@pytest.mark.parametrize(
    ("file", "command"), [(file, command) for file, commands in COMMANDS.items() for command in commands]
)
def test_a_changed_input_is_refused(qc: Qc, folder: Path, file: str, command: str) -> None:
    change(file)
    said = qc(*command.split())
    assert said.code == 1, said
    assert f"{file}: digest sha256:" in said.err, said
    assert "differs from its manifest's sha256:" in said.err
    assert "make it again, or remove" in said.err
    assert f"{file}.json if the change was meant" in said.err
    assert not [path for path in folder.glob("o*") if path.is_file()]


@pytest.mark.usefixtures("folder")
def test_a_change_that_was_meant_is_taken_without_the_manifest(qc: Qc) -> None:
    shutil.copy("float.onnx", "m.onnx")
    assert qc("quantize", "m.onnx", "--precision", "fp16", "-o", "o.onnx").code == 1
    manifest_path(Path("m.onnx")).unlink()
    assert qc("quantize", "m.onnx", "--precision", "fp16", "-o", "o.onnx").code == 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("file", ["m.onnx", "m.engine"])
def test_inspect_shows_what_was_changed_and_says_so(qc: Qc, file: str) -> None:
    assert qc("inspect", file).code == 0
    with Path(file).open("ab") as opened:  # an unknown field of protobuf: it is a model still
        opened.write(b"\xf2\x07\x00")
    said = qc("inspect", file, "--json")
    assert (said.code, said.json["matches_manifest"]) == (1, False)
    assert "make it again, or remove" in said.err.lower()
    # To look at it is not to accept it.
    assert qc("export", "m.onnx", "-o", "o.onnx").code == (1 if file == "m.onnx" else 0)


@pytest.mark.usefixtures("folder")
def test_trust_takes_what_was_changed(qc: Qc) -> None:
    shutil.copy("float.onnx", "m.onnx")
    assert qc("diff", "float.onnx", "m.onnx", "--trust").code == 0


@pytest.mark.usefixtures("folder")
def test_json_of_another_tool_beside_a_model_is_no_manifest(qc: Qc) -> None:
    """Voices of piper are `voice.onnx` and `voice.onnx.json`."""
    Path("float.onnx.json").write_text('{"audio": {"sample_rate": 22050}, "espeak": {"voice": "de"}}')
    assert qc("quantize", "float.onnx", "--precision", "fp16", "-o", "o.onnx").code == 0
    assert "no manifest" in qc("inspect", "float.onnx").out


def test_empty_calibration_data_are_an_error(printed: Printed, tiny_file: MakePath, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((0, 4, 8, 8), np.float32))
    (tmp_path / "folder").mkdir()
    for data in ("x.npz", "folder"):
        output = tmp_path / "r.ranges"
        code, said = printed("calibrate", tiny_file("residual"), "--data", tmp_path / data, "-o", output)
        assert (code, "at least one is required" in said, output.exists()) == (1, True, False)


def test_usage_errors_exit_with_2(printed: Printed, tiny_file: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    out = tmp_path / "o"
    for arguments in (
        ("no-such-verb",),
        ("export",),
        ("build", model, "--target", "tensort", "-o", out),
        ("build", model, "--target", "tensorrt-rtx", "--gpu", "sm1", "-o", out),
        ("build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "--min-shapes", "x:zz:1", "-o", out),
        ("quantize", model, "-o", out),
        ("calibrate", model, "--data", tmp_path / "none.npz", "-o", out),
        ("calibrate", model, "--data", model, "-o", out),
        ("bench", model, "--baseline", model, "--metric", "top7"),
        ("run", tmp_path / "none.toml"),
        ("simplify", model, "-o", tmp_path),
        ("doctor", "-v", "-q"),
    ):
        code, said = printed(*arguments)
        assert code == 2, (arguments, said)
        assert not out.exists()


def test_a_target_that_cannot_work_here_says_why_and_what_to_do(
    printed: Printed, tiny_file: MakePath, tmp_path: Path
) -> None:
    reason = engine("tensorrt").why_not_build()
    if not reason:
        pytest.skip("TensorRT and a GPU are here")
    code, said = printed("build", tiny_file("mlp"), "--target", "tensorrt", "-o", tmp_path / "o.engine")
    assert code == 1
    assert reason in said
    assert "hint:" in said


def test_diff_exits_with_1_on_a_mismatch(printed: Printed, tiny_file: MakePath) -> None:
    first = tiny_file("residual")
    second = tiny_file("residual", file="other.onnx", opset=13)
    assert printed("diff", first, second)[0] == 0
    model = onnx.load(first)
    next(node for node in model.graph.node if node.name == "gemm").attribute.append(
        onnx.helper.make_attribute("alpha", 1.5)
    )
    onnx.save(model, second)
    code, said = printed("diff", first, second)
    assert code == 1
    assert "MISMATCH" in said


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        ({"y": "Relu (x)", "z": "Concat <axis = 1> (x, x)"}, "output 'z': 8x3 is required, 8x6 found"),
        ({"y": "Relu (x)"}, "output 'z': 8x3 float32 is required, no output found"),
        ({"y": "Relu (x)", "z": "Cast <to = 7> (x)"}, "output 'z': float32 is required, int64 found"),
        ({"y": "Relu (x)", "z": "Relu (x)", "w": "Neg (x)"}, "output 'w': no output is required"),
    ],
    ids=["shape", "missing", "type", "more"],
)  # fmt: skip
def test_bench_and_diff_end_with_1_where_outputs_are_not_the_baselines(
    outputs: dict[str, str], found: str, qc: Qc, tmp_path: Path
) -> None:
    def model(name: str, made: dict[str, str]) -> Path:
        declared = ", ".join(f"{'int64' if 'Cast' in op else 'float'}[b,{6 if 'Concat' in op else 3}] {out}"
                             for out, op in made.items())  # fmt: skip
        body = " ".join(f"{out} = {op}" for out, op in made.items())
        return written(tmp_path / name, f"(float[b,3] x) => ({declared}) {{ {body} }}")

    baseline, other = model("a.onnx", {"y": "Relu (x)", "z": "Relu (x)"}), model("b.onnx", outputs)
    np.save(tmp_path / "x.npy", normal(8, 3))
    data = ("--data", tmp_path / "x.npy")
    said = qc("bench", other, "--baseline", baseline, "--max-time", 0.2, *data, "--json")
    [row] = [row for row in said.json["artifacts"] if row["artifact"] == str(other)]
    assert said.code == 1
    assert any(found in text for text in row["warnings"])
    assert found in row["difference"]["mismatch"]
    assert not row["difference"]["passed"]
    said = qc("diff", baseline, other, *data, "--json")
    assert said.code == 1
    [output] = [output for output in said.json["outputs"] if not output["passed"]]
    assert found.partition(": ")[2].removesuffix(" found") in output["criterion"]

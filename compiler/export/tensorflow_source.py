"""Convert a TensorFlow model that is given as MODEL, and compare the ONNX file with TensorFlow's own outputs.

tf2onnx writes the graph in the process that holds the model (`model.tensorflow`). Names, the layout of images
(NHWC) and the dynamic axes stay those of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifact import Artifact, Check, commit
from ...data.batches import Data
from ...errors import ExportError, InvalidOption, ModelError, UnsupportedOperator
from ...files import writing
from ...model.archive_checks import check_archive, is_archive
from ...model.input_domain import read_domains
from ...model.input_notes import AxisRange, InputNote, write_notes
from ...model.onnx_file import load_checked, load_onnx, model_io, opset, save_onnx
from ...model.preprocessing import Preprocessing
from ...model.random_input import RandomInput, random_feeds
from ...model.source import Source
from ...model.tensorflow.keras_config import read_keras_config, refusal
from ...model.tensorflow.process import TensorFlowProcess, tensorflow_python
from ...progress import Progress
from ...tensors import AxisExtents, Dim, Feeds, TensorInfo, parse_dynamic_axis, parse_input
from ..check import OnnxReference, Outputs, compare_outputs
from ..opset.upgrade import upgrade_in_place
from .manifest import export_manifest
from .preprocessing import note_preprocessing
from .write import lower_to

if TYPE_CHECKING:
    import onnx

_HIGHEST = 18  # tf2onnx 1.17 writes no newer opset
_BATCHES = (1, 3)
_TENSORFLOW_DOMAIN = "ai.onnx.converters.tensorflow"


def take_tensorflow(
    source: Source,
    output: Path,
    *,
    inputs: Sequence[str | TensorInfo],
    outputs: Sequence[str],
    dynamic: Sequence[str],
    opset_version: int,
    data: str | None,
    trust: bool,
    python: Sequence[str],
    preprocessing: Preprocessing | None,
    progress: Progress,
) -> Artifact:
    """Convert a SavedModel or a Keras file to ONNX, check it, and compare it with TensorFlow.

    Args:
        source: Of kind "savedmodel" or "keras".
        output: The .onnx file to write.
        inputs, outputs, dynamic, opset_version, data, trust, preprocessing, progress: As `export` has them.
        python: `tensorflow=INTERPRETER`; this interpreter where it is empty.

    Raises:
        EngineUnavailable: If TensorFlow or tf2onnx is missing in the interpreter.
        ModelError: If the file holds code, is damaged, or the ONNX file computes something else.
        ExportError, UnsupportedOperator: If tf2onnx has no form for it.
    """
    if source.kind == "keras":
        require_data_alone(source.file, trust=trust)
    with TensorFlowProcess(tensorflow_python(python), source.spec) as process:
        progress("start TensorFlow")
        process.require_packages()
        progress("load the model")
        told = process.ask(
            "load", path=str(source.file), kind=source.kind, signature=source.function, trust=trust
        )
        tensors = declared(told["inputs"], inputs, dynamic)
        names = _output_names(told["outputs"], outputs)
        with writing(output) as path:
            progress("convert to ONNX")
            answer = process.ask(
                "convert",
                shapes=[[dim if isinstance(dim, int) else None for dim in one.shape] for one in tensors],
                opset=min(opset_version, _HIGHEST),
                output=str(path),
            )
            _complete(path, tensors, told["outputs"], names, opset_version, source.spec)
            progress("compare with TensorFlow")
            comparison = _Comparison(process, path, tensors, names, source.spec)
            checks = [
                Check("ONNX checker and shape inference", True, f"opset {opset_version}"),
                *comparison.run(data),
            ]
            proto = load_onnx(path)
            write_notes(proto, comparison.notes())
            save_onnx(proto, path)
            note_preprocessing(path, preprocessing, {})
            proto = load_onnx(path)
            options = {
                "model": source.spec,
                "opset": opset_version,
                "exporter": "tf2onnx",
                "axes": comparison.axes(),
            }
            manifest = export_manifest(proto, options, checks, comparison.warnings)
            manifest = replace(manifest, tools={**_without_torch(manifest.tools), **answer["versions"]})
            manifest = commit(path, manifest)
    return Artifact(output, manifest)


def require_data_alone(path: Path, *, trust: bool) -> None:
    """Refuse a `.keras` file that holds code, before any process is started; `.h5` files are read there.

    Raises:
        ModelError: If it holds code and `trust` is not given, or is no such file.
    """
    if path.suffix.lower() != ".keras":
        return
    if is_archive(path):
        check_archive(
            path, what="a Keras file", hint="copy it again, or save it with model.save('model.keras')"
        )
    try:
        config = read_keras_config(str(path))
    except ValueError as error:
        raise ModelError(
            f"{path}: not a Keras file: {error}", hint="save it with model.save('model.keras')", file=path
        ) from error
    refused = refusal(str(path), config, trust=trust)
    if refused is not None:
        raise ModelError(refused[0], hint=refused[1], file=path)


def declared(
    told: Sequence[Mapping[str, Any]], given: Sequence[str | TensorInfo], dynamic: Sequence[str]
) -> tuple[TensorInfo, ...]:
    """Return the inputs of a model with the shapes that were asked for.

    A first axis that the model leaves open is named "batch", another one INPUT_AXIS.

    Args:
        told: Name, dtype and shape of each input, a dynamic axis None.
        given: Shapes of some inputs, whose dtypes are the model's.
        dynamic: `INPUT:AXIS=NAME` each.

    Raises:
        InvalidOption: If an input is unknown, or a shape does not fit the model.
    """
    asked = {one.name: one for one in (parse_input(one) if isinstance(one, str) else one for one in given)}
    known = {str(one["name"]): one for one in told}
    labels = [parse_dynamic_axis(one) for one in dynamic]
    for name in (*asked, *(label[0] for label in labels)):
        if name not in known:
            raise InvalidOption(
                f"`inputs` {name}: is no input of the model; it takes {', '.join(known)}", option="inputs"
            )
    made = []
    for name, one in known.items():
        shape: list[Dim] = [
            ("batch" if axis == 0 else f"{name}_{axis}") if dim is None else int(dim)
            for axis, dim in enumerate(one["shape"])
        ]
        extents: tuple[AxisExtents, ...] = ()
        preprocessing = None
        if name in asked:
            _require_fits(asked[name], one["shape"])
            shape, extents = list(asked[name].shape), asked[name].extents
            preprocessing = asked[name].preprocessing
        for label in labels:
            if label[0] == name and label[1] < len(shape):
                shape[label[1]] = label[2]
        made.append(TensorInfo(name, str(one["dtype"]), tuple(shape), extents, preprocessing))
    return tuple(made)


def _require_fits(tensor: TensorInfo, shape: Sequence[int | None]) -> None:
    fits = len(shape) == len(tensor.shape) and all(
        dim is None or dim == asked for dim, asked in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        found = "x".join("?" if dim is None else str(dim) for dim in shape)
        raise InvalidOption(f"`inputs` {tensor}: the model's shape is {found}", option="inputs")


def _output_names(told: Sequence[str], given: Sequence[str]) -> list[str]:
    if given and len(given) != len(told):
        raise InvalidOption(
            f"`outputs`: {len(given)} names are given; the model has {len(told)} outputs: {', '.join(told)}",
            option="outputs",
        )
    return list(given or told)


def _complete(
    path: Path,
    tensors: Sequence[TensorInfo],
    told: Sequence[str],
    names: Sequence[str],
    version: int,
    label: str,
) -> None:
    """Give the file its axes, its names and its opset, and check it."""
    proto = load_onnx(path)
    foreign = sorted({node.op_type for node in proto.graph.node if node.domain == _TENSORFLOW_DOMAIN})
    foreign = foreign or _unknown(proto)
    if foreign:
        raise UnsupportedOperator(
            f"{label}: tf2onnx has no form for TensorFlow's {', '.join(foreign)}",
            hint="save a SavedModel of the part without them",
            operator=foreign[0],
        )
    _name_axes(proto, tensors)
    if list(names) != list(told):
        _name_outputs(proto, names)
    if opset(proto) < version:
        upgrade_in_place(proto, version)
    proto.producer_name = proto.producer_name or "tf2onnx"
    save_onnx(proto, path)
    lower_to(path, version, label)
    load_checked(path)


def _unknown(proto: onnx.ModelProto) -> list[str]:
    """Operators under ONNX's own domain that ONNX does not have: what tf2onnx left as it was."""
    import onnx

    return sorted(
        {node.op_type for node in proto.graph.node if not node.domain and not onnx.defs.has(node.op_type)}
    )


def _name_axes(proto: onnx.ModelProto, tensors: Sequence[TensorInfo]) -> None:
    """Name the dynamic axes of the inputs; what tf2onnx noted of other shapes has made up names."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for value in proto.graph.input:
        dimensions = value.type.tensor_type.shape.dim
        for dimension, extent in zip(dimensions, by_name[value.name].shape, strict=True):
            if isinstance(extent, int):
                dimension.dim_value = extent
            else:
                dimension.dim_param = extent
    first = {one.shape[0] for one in tensors if one.shape}
    batch = next(iter(first)) if len(first) == 1 else None
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if not dimension.HasField("dim_value"):
                dimension.dim_param = (
                    batch if axis == 0 and isinstance(batch, str) else f"{value.name}_{axis}"
                )


def _name_outputs(proto: onnx.ModelProto, names: Sequence[str]) -> None:
    """Names that were asked for: an Identity each, since a tensor may be read inside, too."""
    import onnx

    for value, name in zip(proto.graph.output, names, strict=True):
        if value.name != name:
            proto.graph.node.append(onnx.helper.make_node("Identity", [value.name], [name], f"output_{name}"))
            value.name = name


def _without_torch(tools: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in tools.items() if name not in ("torch", "onnxscript")}


@dataclass
class _Comparison:
    """Runs the model in TensorFlow and the file in ONNX Runtime on the same feeds."""

    process: TensorFlowProcess
    path: Path
    tensors: Sequence[TensorInfo]
    names: Sequence[str]
    label: str

    def __post_init__(self) -> None:
        self.warnings: list[str] = []
        self.feeds: Feeds = {}
        self._session = OnnxReference(self.path)
        self._proto = load_onnx(self.path)
        write_notes(self._proto, _asked(self.tensors))

    def run(self, data: str | None) -> Iterator[Check]:
        """Yield a check for each dynamic axis at other extents, or one, and one of the data."""
        made = RandomInput(self._proto)
        self.feeds, _ = made.run(self._outputs, _BATCHES[-1] - 1)
        yield self._compare("same outputs as TensorFlow", self.feeds)
        for name in dict.fromkeys(axis for one in self.tensors for axis in one.dynamic_axes.values()):
            extent = self._extents()[name]
            others = _BATCHES if made.has_batch and self._is_first(name) else (extent + 1,)
            for other in others:
                feeds = self._at({name: other})
                check = self._other(f"same outputs as TensorFlow at {name} {other}", name, feeds)
                if check is not None:
                    yield check
        if data is not None:
            batch = next(iter(Data(data, model_io(self._proto).inputs)))
            self.feeds = batch.feeds
            yield self._compare("same outputs as TensorFlow on the data", batch.feeds)

    def notes(self) -> dict[str, InputNote]:
        """What later stages should know of each input."""
        asked = _asked(self.tensors)
        return {
            one.name: InputNote(
                tuple(int(extent) for extent in self.feeds[one.name].shape),
                asked[one.name].axes if one.name in asked else {},
                one.preprocessing,
            )
            for one in self.tensors
        }

    def axes(self) -> dict[str, object]:
        """Axis name to its range, and the extent that was checked first."""
        ranges = {
            one.dynamic_axes[axis]: limits
            for one in self.tensors
            for axis, limits in (_asked([one])[one.name].axes.items() if one.extents else ())
        }
        return {
            name: {**ranges.get(name, AxisRange()).as_json(), "traced": extent}
            for name, extent in self._extents().items()
        }

    def _outputs(self, feeds: Feeds) -> tuple[Outputs, Outputs]:
        """What TensorFlow and the file make of feeds."""
        return self.process.infer([feeds[one.name] for one in self.tensors]), self._session(feeds)

    def _compare(self, subject: str, feeds: Feeds) -> Check:
        check = compare_outputs(subject, self.names, [self._outputs(feeds)])
        if not check.passed:
            raise ModelError(
                f"{self.label}: the converted file failed '{check.name}': {check.detail}",
                hint="is the model free of randomness? another `opset` or fixed `inputs` may help",
            )
        return check

    def _other(self, subject: str, name: str, feeds: Feeds) -> Check | None:
        """The check at another extent; None with a warning where the model itself does not take it."""
        try:
            self.process.infer([feeds[one.name] for one in self.tensors])
        except ModelError as error:
            self.warnings.append(f"axis {name!r} was not checked at another extent: {error.message}")
            return None
        try:
            return self._compare(subject, feeds)
        except ModelError as error:
            raise ExportError(
                f"{self.label}: axis {name!r} cannot be dynamic: {error.message}",
                hint=f"give `inputs` with a fixed extent for {name!r}",
            ) from error

    def _at(self, extents: Mapping[str, int]) -> Feeds:
        every = {**self._extents(), **extents}
        shapes = {
            one.name: tuple(every[dim] if isinstance(dim, str) else dim for dim in one.shape)
            for one in self.tensors
        }
        return random_feeds(self.tensors, seed=1, shapes=shapes, domains=read_domains(self._proto))

    def _extents(self) -> dict[str, int]:
        return {
            name: int(self.feeds[one.name].shape[axis])
            for one in self.tensors
            for axis, name in one.dynamic_axes.items()
        }

    def _is_first(self, name: str) -> bool:
        return all(axis == 0 for one in self.tensors for axis, dim in one.dynamic_axes.items() if dim == name)


def _asked(tensors: Sequence[TensorInfo]) -> dict[str, InputNote]:
    """The extents that were asked for, of the inputs whose extents are all known by them."""
    notes = {}
    for one in tensors:
        traced = {item.axis: item.traced for item in one.extents if item.traced}
        example = tuple(
            dim if isinstance(dim, int) else traced.get(axis, 2) for axis, dim in enumerate(one.shape)
        )
        if traced:
            limits = {item.axis: AxisRange(item.minimum, item.maximum) for item in one.extents}
            notes[one.name] = InputNote(example, limits)
    return notes

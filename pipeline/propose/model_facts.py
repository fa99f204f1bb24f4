"""Collect the facts about a model for a proposal: inputs, kinds of layers, size, outputs.

An ONNX file is read without its weights. A PyTorch model is loaded and run once, on its example, on the first
sample of the data, or on random values.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.progress import Progress, quiet
from ...data.batches import Data
from ...data.kinds import ARRAYS
from ...data.spelling import FUNCTION
from ...errors import InvalidOption
from ...model.sources.source import Source, parse_source
from ...spec.tensors import TensorInfo, fill_dynamic, format_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.sources.example import Example
    from ...model.sources.pytorch import LoadedModel

_TEST_BATCHES = (1, 3)
_INPUT_TEMPLATES = {
    "Conv1d": "[batch,{0.in_channels},LENGTH]",
    "Conv2d": "[batch,{0.in_channels},HEIGHT,WIDTH]",
    "Conv3d": "[batch,{0.in_channels},DEPTH,HEIGHT,WIDTH]",
    "Linear": "[batch,{0.in_features}]",
    "Embedding": "[batch,LENGTH]:int64",
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "[batch,LENGTH,{0.input_size}]"),
}
"""PyTorch layer to a template of its input, with the extents that the layer defines."""


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model for a proposal.

    Attributes:
        inputs: Dynamic axes have names.
        outputs: Of one run; for an ONNX file, zeros with its types and shapes (1 for dynamic axes).
        declared: Inputs that the recipe must give; empty if the source defines them.
        kinds: The keys of `KINDS` that the model contains.
        precision: "fp32", or "int8" for a graph with Q/DQ.
        multiply_adds: For one sample; 0 if unknown.
        learners: Operators of `ai.onnx.ml`, such as scikit-learn's trees, which only ONNX Runtime supports.
    """

    source: Source
    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: Mapping[str, NDArray[Any]]
    declared: tuple[str, ...] = ()
    why_inputs: str = ""
    kinds: frozenset[str] = frozenset()
    precision: str = "fp32"
    parameters: int = 0
    weight_bytes: int = 0
    multiply_adds: int = 0
    learners: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def is_onnx(self) -> bool:
        """Whether the model is an ONNX file, without a PyTorch model to compare with."""
        return self.source.kind == "onnx"


def look_at_model(
    spec: str,
    *,
    inputs: Sequence[str] = (),
    weights: str = "",
    download: bool = False,
    samples: Sequence[str] = (),
    trust: bool = False,
    progress: Progress,
) -> ModelFacts:
    """Return the facts about a model; if its inputs are unknown, the error shows which to give.

    `samples` are DATA arguments; the first suitable one defines the inputs. Other options are as in `init`.
    """
    source = parse_source(spec, weights=weights, download=download)
    progress("look at the model")
    if source.kind == "onnx":
        return _onnx_facts(source)
    from ...model.sources.archives import trust_files
    from ...model.sources.load import load_torch

    with trust_files(trust):
        return _module_facts(source, load_torch(source), inputs, samples)


def plain_name(source: Source) -> str:
    """Return a base name for the files of a model: "digits", "resnet18"."""
    if source.is_named:
        text = (source.path.name if source.path else source.name).rpartition("/")[2]
    elif source.path is not None:
        stem = source.path.stem
        generic = stem in ("model", "models", "net", "main") and source.function
        parent = source.path.resolve().parent.name
        text = parent if generic and parent else stem
    else:
        text = source.module.rpartition(".")[2]
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "model"


def _onnx_facts(source: Source) -> ModelFacts:
    from ...model.graph.graph import graph_precision
    from ...model.graph.multiply_adds import multiply_adds
    from ...model.graph.onnx_file import read_weightless

    onnx_file = read_weightless(source.file)
    graph = onnx_file.model.graph
    return ModelFacts(
        source,
        plain_name(source),
        onnx_file.io.inputs,
        {output.name: _zeros(output) for output in onnx_file.io.outputs},
        kinds=kinds_of_layers(node.op_type for node in graph.node),
        precision=graph_precision(onnx_file.model),
        parameters=sum(math.prod(tensor.dims) for tensor in graph.initializer),
        weight_bytes=source.file.stat().st_size,
        multiply_adds=sum(multiply_adds(onnx_file.model).values()),
        learners=tuple(sorted({node.op_type for node in graph.node if node.domain == "ai.onnx.ml"})),
    )


def _zeros(tensor: TensorInfo) -> NDArray[Any]:
    import numpy as np

    return np.zeros(fill_dynamic(tensor), tensor.dtype if "int" in tensor.dtype else "float32")


def _module_facts(
    source: Source, loaded: LoadedModel, inputs: Sequence[str], samples: Sequence[str]
) -> ModelFacts:
    from ...compiler.export.checks import open_original
    from ...model.sources.pytorch import flat_outputs, name_outputs

    declared, why = _declare_inputs(source, loaded, inputs, samples)
    with open_original(loaded, source.spec, declared, (), None) as original:
        arrays = flat_outputs(original.reference)[1]
        names = name_outputs((), original.reference, original.example.feeds)
        weights = [*loaded.module.parameters(), *loaded.module.buffers()]
        layers = [
            getattr(part, "original_name", "") or type(part).__name__ for part in loaded.module.modules()
        ]
        operators = [str(node.target) for node in _program_nodes(loaded.module)]
        return ModelFacts(
            source,
            plain_name(source),
            original.example.inputs,
            dict(zip(names, arrays, strict=True)),
            declared,
            why,
            kinds_of_layers([*layers, *operators]),
            parameters=sum(weight.numel() for weight in weights),
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            multiply_adds=_multiply_adds(original),
            notes=tuple(original.warnings),
        )


def _declare_inputs(
    source: Source, loaded: LoadedModel, inputs: Sequence[str], samples: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Return the inputs that the recipe must declare, and their origin."""
    from ...model.sources.example import forward_parameters, make_example
    from ...model.sources.pytorch import program_inputs

    if inputs:
        return tuple(inputs), "as given"
    if source.is_named:
        return (), ""
    if loaded.example is not None:
        example = make_example(loaded, (), ())
        if example.has_dynamic_batch or any(tensor.preprocessing for tensor in example.inputs):
            return (), "the model declares them"
        if batch_inputs := _with_dynamic_batch(loaded, example):
            return batch_inputs, "of the model's own example; any batch size"
        return (), "the model's own example"
    program = program_inputs(loaded.module) if _program_nodes(loaded.module) else ()
    if program:
        return tuple(map(_format_input, program)), "as the program was captured"
    parameters = forward_parameters(loaded.module)
    names = [name for name, parameter in parameters if parameter.default is parameter.empty]
    data_inputs = next(filter(None, (_inputs_of_data(spec, loaded, names) for spec in samples if spec)), ())
    if not data_inputs:
        raise InvalidOption(
            f"{source.spec}: the shapes of its inputs are not known; it takes {', '.join(names) or 'inputs'}",
            hint=f"give {input_templates(loaded.module, names)}, or data that has them, or return "
            "(module, example) from the function",
            option="inputs",
        )
    return tuple(map(_format_input, data_inputs)), "of the data's first sample"


def _inputs_of_data(data: str, loaded: LoadedModel, names: Sequence[str]) -> tuple[TensorInfo, ...]:
    """Return the inputs of arrays, of a function's samples, or of images after preprocessing; else empty."""
    from ...compiler.export.data_axes import inputs_of_first_batch
    from ...model.sources.load import find_preprocessing
    from ...model.sources.preprocessing import ImagePreprocessing

    spelling = Data(data, ()).spelling
    if spelling.kind in (FUNCTION, *ARRAYS):
        return inputs_of_first_batch(loaded, data, Data)
    preprocessing = spelling.query.get("preprocessing")
    image = find_preprocessing(preprocessing) if preprocessing else None
    if not isinstance(image, ImagePreprocessing) or len(names) != 1:
        return ()
    return (TensorInfo(names[0], "float32", ("batch", image.channels, image.height, image.width)),)


def _with_dynamic_batch(loaded: LoadedModel, example: Example) -> tuple[str, ...]:
    """Return the inputs of an example with a dynamic batch; empty if the model rejects other batch sizes."""
    from ...model.sources.example import make_example
    from ...model.sources.nested import NestedInputs

    extents = {array.shape[0] if array.ndim else None for array in example.feeds.values()}
    if isinstance(loaded.module, NestedInputs) or len(extents) != 1 or None in extents:
        return ()
    texts = tuple(
        _format_input(TensorInfo(name, str(array.dtype), ("batch", *array.shape[1:])))
        for name, array in example.feeds.items()
    )
    try:
        dynamic = make_example(loaded, texts, ())
        with quiet():
            for batch in _TEST_BATCHES:
                dynamic.call(loaded.module, dynamic.resize_batch(batch))
    except Exception:  # models with a fixed batch raise many types of errors
        return ()
    return texts


def _format_input(tensor: TensorInfo) -> str:
    """Return the input as `NAME:SHAPE[:DTYPE]`."""
    dtype = "" if tensor.dtype == "float32" else f":{tensor.dtype}"
    return f"{tensor.name}:{format_shape(tensor.shape)}{dtype}"


def _multiply_adds(original: Any) -> int:
    """Return multiply-adds of one sample as PyTorch counts them; 0 if it cannot count them."""
    from torch.utils.flop_counter import FlopCounterMode

    example = original.example
    first = next(iter(example.feeds.values()))
    try:
        with quiet(), FlopCounterMode(display=False) as counter:
            example.call(original.loaded.module, example.feeds)
        return int(counter.get_total_flops() // 2 // max(1, first.shape[0] if first.ndim else 1))
    except Exception:  # TorchScript, and operators unknown to the counter
        return 0


def relocate_source(source: Source, folder: Path) -> str:
    """Return a MODEL or DATA argument rewritten for a file in `folder`."""
    if source.path is None:  # a file of weights has an absolute path
        return source.absolute if source.options.file else source.spec
    path, query = shortest_path_text(folder, source.path), source.options.query
    if source.is_named:
        return f"{source.kind}:{path if '/' in path else f'./{path}'}{query}"
    return f"{path}:{source.function}{query}" if source.function else path


def shortest_path_text(folder: Path, path: Path) -> str:
    """Return a path relative to a folder, or the absolute path if it is shorter."""
    absolute = str(path.resolve())
    return min(os.path.relpath(absolute, folder.resolve()), absolute, key=len)


KINDS = {
    "convolution": re.compile(r"conv", re.I),
    "recurrent": re.compile(r"^(aten\.)?(lstm|gru|rnn)", re.I),
    "attention": re.compile(r"attention|^softmax$|layernorm", re.I),
    "product": re.compile(r"linear|^matmul$|^gemm$|^(aten\.)?(addmm|bmm|mm)\b", re.I),
}
"""Kind of layer to the pattern of its names: PyTorch modules, operators of `torch.export` or of ONNX."""


def input_templates(module: Any, names: Sequence[str]) -> str:
    """Return `inputs` templates for the arguments; a known first layer gives the shape of a sole argument."""
    if len(names) != 1:
        return " and ".join(f"`inputs` {name}:[batch,...]" for name in names) or "`inputs` NAME:[batch,...]"
    layer = next((part for part in module.modules() if type(part).__name__ in _INPUT_TEMPLATES), None)
    shape = "[batch,...]" if layer is None else _INPUT_TEMPLATES[type(layer).__name__].format(layer)
    if not getattr(layer, "batch_first", True):
        shape = shape.replace("batch,LENGTH", "LENGTH,batch")
    return f"`inputs` {names[0]}:{shape}"


def _program_nodes(module: Any) -> Iterable[Any]:
    """Return the nodes of a captured program; empty for other modules."""
    return getattr(getattr(module, "graph", None), "nodes", ()) if hasattr(module, "_in_spec") else ()


def kinds_of_layers(names: Iterable[str]) -> frozenset[str]:
    """Return the kinds of layers with these names."""
    distinct = set(names)
    return frozenset(kind for kind, pattern in KINDS.items() if any(map(pattern.search, distinct)))

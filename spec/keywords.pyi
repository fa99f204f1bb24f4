"""Keyword arguments of the verbs, for type checkers alone. Written by `make reference` from spec/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from .tensorrt import TensorRTOptions
from .tensors import Dataset

class AutoKeywords(TypedDict, total=False):
    """Options of `auto`, by name."""

    max_drop: float
    """Largest drop in accuracy, in points, or in the metric's own unit."""
    data: Dataset
    """Samples for calibration and for accuracy; one set is divided between the two if possible."""
    calibration: Dataset
    """Samples to calibrate on; default: those of --data."""
    evaluation: Dataset
    """Labelled samples for accuracy; default: those of --data."""
    inputs: Sequence[str]
    """Input of a MODEL that declares none."""
    weights: str
    """Weights of a model by name or of a function: random, or a .safetensors or state dict; default: the
    model's own, from the local cache."""
    download: bool
    """Let the package of a model by name download what its cache lacks."""
    targets: Sequence[str]
    """Runtime to build for: onnxruntime, openvino, tensorrt-rtx, tensorrt, torchscript; default: those
    installed."""
    gpus: Sequence[str]
    """Compute capability to build TensorRT-RTX engines for; default: the GPU here, or sm86 and sm89 for
    --target tensorrt-rtx."""
    metric: str
    """Accuracy metric: auto, top1, top5, f1[:AVERAGE], miou, map[:50], wer, cer, ndcg[:K], neighbours[:K],
    spearman, perplexity[:masked], kl, cosine, mse or file.py:function; auto chooses by the task and the
    labels."""
    max_time_s: float | None
    """Time limit of the measurement, in seconds; default: by the number of artifacts."""
    trust: bool
    """Load a .pt2 or TorchScript file, which may run code, or a SavedModel that touches files."""
    output: str | Path | None
    """Folder to write; default: auto-NAME."""
    force: bool
    """Overwrite the recipe in the folder."""

class BenchKeywords(TypedDict, total=False):
    """Options of `benchmark`, by name."""

    baseline: str
    """Artifact or MODEL to compare with."""
    threads: int
    """Threads of every artifact; 0 means all usable cores."""
    max_time_s: float
    """Time limit for rounds and launches, in seconds; at least eight rounds run."""
    precision_target: float
    """Relative width of the speed-up intervals at which measuring stops."""
    metric: str
    """Accuracy metric: auto, top1, top5, f1[:AVERAGE], miou, map[:50], wer, cer, ndcg[:K], neighbours[:K],
    spearman, perplexity[:masked], kl, cosine, mse or file.py:function."""
    candidates: int
    """Number of artifacts judged on the evaluation samples before, such as by `tune`; it corrects the
    intervals of drops."""
    batch_sizes: Sequence[int]
    """Batch sizes of an additional latency curve."""
    clients: Sequence[int]
    """Numbers of concurrent clients of an additional latency curve."""
    streams: Sequence[int]
    """Numbers of inferences in flight of an additional throughput curve, on GPUs."""
    cuda_graph: bool | None
    """CUDA graphs of TensorRT engines: true measures with and without them, false without; default: with
    them, if an inference can be captured."""
    layer_times: bool
    """Time each layer with the runtime's profiler, after all other measurements."""
    torch_modes: Sequence[Literal["trace", "script", "freeze", "compile", "half", "autocast"]]
    """Additional execution mode of each PyTorch MODEL among the artifacts."""
    models: Sequence[str] | Mapping[str, object]
    """Additional PyTorch MODEL that is measured as it is, such as one quantized by torch.ao."""
    devices: Sequence[str]
    """Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1; all measures every GPU of the
    machine separately."""
    python: Sequence[str]
    """Python interpreter of an engine's workers."""
    timeout_s: float
    """Time without an answer after which a worker counts as failed, in seconds."""
    output: str | Path | None
    """Results file to write, such as results.json."""
    data: Dataset | None
    """Samples; the first batch is timed instead of random input."""
    evaluation: Dataset | None
    """Labelled samples for accuracy and output difference."""
    inputs: Sequence[str]
    """Input that no artifact declares."""
    batch_size: int | None
    """Samples per call of a model with a dynamic batch."""
    trust: bool
    """Run files without a matching manifest, and .pt2 and TorchScript files, which may run code."""

class BuildKeywords(TypedDict, total=False):
    """Options of `build`, by name."""

    target: Literal["onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"]
    """Runtime that the artifact is for."""
    method: str
    """Method that chooses the thresholds: minmax, percentile[:NUMBER], entropy, mse or auto; default: the
    method of the ranges."""
    layers: Sequence[str] | Mapping[str, object]
    """Precision of layers by name, glob or operator type: fp32, fp16, bf16 or int8."""
    float_precision: Literal["auto", "fp32", "fp16", "bf16"]
    """Precision of layers that stay in floating point; auto: fp16 in INT8 of TensorRT, else fp32."""
    rules: Sequence[str] | Mapping[str, object]
    """Kind of an output: classes, embedding, labels or signal."""
    allow_loss: bool
    """Keep an INT8 model whose outputs on the data differ by more than `diff` allows."""
    mode: Literal["static", "dynamic", "weights"]
    """Kind of quantization: calibrated scales, scales computed at run time, or weights only."""
    exclude: Sequence[str]
    """Layers that stay in floating point: name, glob or operator type."""
    only: Sequence[str]
    """The only layers to quantize: name, glob or operator type."""
    isa: Literal["auto", "avx2", "avx-vnni", "avx512-vnni", "amx", "neon", "neon-dotprod", "i8mm"]
    """Instruction set of the CPU that will run INT8; auto means this machine's. Files for avx2 run on every
    x86 CPU."""
    correct_bias: bool
    """Subtract the mean error of static INT8, measured on the data, from the biases."""
    search: bool
    """Quantize static INT8 in several ways and keep the graph with the most accurate outputs."""
    block_size: int
    """Number of weights that share a scale in mode weights; 0 means one scale per output channel."""
    rounding: Literal["rtn", "gptq"]
    """Rounding of weights: to nearest (rtn), or to the least output error on the data (gptq)."""
    quant_format: Literal["", "nbits", "qdq"]
    """Operators of mode weights: ONNX Runtime's (nbits) or ONNX's (qdq); default: the target's."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4", "mxfp8", "best"]
    """Precision that the layers must reach, or the build fails."""
    gpus: Sequence[str]
    """Compute capability to build for: sm75, sm80, sm86, sm89, sm120 or sm121 of TensorRT-RTX 1.7; in a
    recipe, cluster makes an artifact for each of the cluster's GPUs; default: this machine's GPU."""
    min_shapes: Sequence[str] | Mapping[str, object]
    """Smallest shape of an input."""
    opt_shapes: Sequence[str] | Mapping[str, object]
    """Shape of an input to optimize for."""
    max_shapes: Sequence[str] | Mapping[str, object]
    """Largest shape of an input."""
    calibrator: Literal["", "ranges", "native", "entropy", "minmax"]
    """Source of the INT8 scales of TensorRT 8.5 to 10, in place of Q/DQ: the ranges file (ranges), or
    TensorRT's own calibrator on the data."""
    allow_fallback: bool
    """Keep an artifact that does not reach its precision or accuracy, with a warning."""
    strict: bool
    """Fail if a single layer does not reach the precision."""
    tensorrt: TensorRTOptions | Mapping[str, object]
    """TensorRT's own options."""
    ranges: str | Path | None
    """Ranges file to quantize the model with before the build."""
    inputs: Sequence[str]
    """Input of a PyTorch MODEL."""
    threads: int
    """Threads of a CPU runtime; 0 means the runtime's default."""
    data: Dataset | None
    """Samples for the INT8 accuracy check, the artifact check and the calibrator."""
    calibration_cache: str | Path | None
    """File for the scales that TensorRT's calibrator computes."""
    trust: bool
    """Load a .pt2 or TorchScript file, which may run code."""

class CalibrateKeywords(TypedDict, total=False):
    """Options of `calibrate`, by name."""

    method: str
    """Method that chooses the thresholds: minmax, percentile[:NUMBER], entropy, mse or auto; `quantize` can
    choose another."""
    samples: int
    """Largest number of samples; 0 means all."""
    targets: Sequence[Literal["onnxruntime", "openvino", "tensorrt"]]
    """Runtime to calibrate for; default: all; fewer are faster."""
    shard: str
    """Part of the samples to observe: every PARTS-th; `ranges merge` joins the parts."""
    threads: int
    """Number of threads; 0 means one per core."""
    resume: bool
    """Start over instead of resuming an interrupted calibration."""

class ConnectKeywords(TypedDict, total=False):
    """Options of `connect`, by name."""

    tls_ca: str | Path | None
    """Certificate of the cluster's authority."""
    tls_cert: str | Path | None
    """Certificate of this machine."""
    tls_key: str | Path | None
    """Private key of that certificate."""
    insecure: Sequence[str]
    """Remote host to connect to without TLS; give it twice to confirm."""

class DiffKeywords(TypedDict, total=False):
    """Options of `diff`, by name."""

    data: Dataset | None
    """Samples to compare on, instead of random input."""
    samples: int | None
    """Largest number of samples; default: 64, spread over all (all for --metric), or 8 with --layers."""
    threads: int
    """Threads of each model; 0 means the runtime's default."""
    trust: bool
    """Run files without a matching manifest, and .pt2 and TorchScript files, which may run code."""
    inputs: Sequence[str]
    """Input that no artifact declares."""
    atol: Sequence[str] | Mapping[str, object]
    """Absolute tolerance."""
    rtol: Sequence[str] | Mapping[str, object]
    """Relative tolerance."""
    snr: Sequence[str] | Mapping[str, object]
    """Smallest signal-to-noise ratio."""
    rules: Sequence[str] | Mapping[str, object]
    """Kind of an output: classes, embedding, labels or signal."""
    metric: str | None
    """Accuracy to compare on labelled --data, beside the outputs: auto, top1, top5, f1[:AVERAGE], miou,
    map[:50], wer, cer, ndcg[:K], neighbours[:K], spearman, perplexity[:masked], kl, cosine, mse or
    file.py:function."""
    max_drop: float | None
    """Largest drop in accuracy that passes, in points, or in the metric's own unit; default: any."""

class DoctorKeywords(TypedDict, total=False):
    """Options of `doctor`, by name."""

    gpus: Sequence[str]
    """Compute capability to report on, in place of this machine's GPUs."""
    python: Sequence[str]
    """Python interpreter with TensorFlow to check."""

class ExportKeywords(TypedDict, total=False):
    """Options of `export`, by name."""

    outputs: Sequence[str]
    """Name of an output, in the order of the outputs."""
    dynamic: Sequence[str]
    """Dynamic axis, such as x:0=batch."""
    opset: int
    """ONNX opset to export, 13 to 23."""
    freeze_branches: bool
    """Export the branches that the example takes, if a model branches on values."""
    dtype: Literal["", "float32"]
    """Convert a PyTorch model of another floating-point type, its inputs and DATA to this type."""
    trust: bool
    """Load a .pt2 or TorchScript file, which may run code, or a SavedModel that touches files."""
    weights: str
    """Weights of a model by name or of a function: random, or a .safetensors or state dict; default: the
    model's own, from the local cache."""
    download: bool
    """Let the package of a model by name download what its cache lacks."""
    python: Sequence[str]
    """Python interpreter that has TensorFlow, for a TensorFlow MODEL."""
    target: Literal["onnxruntime", "openvino", "tensorrt"] | None
    """Runtime of the Q/DQ nodes of a model trained with fake quantization."""
    data: Dataset | None
    """Samples to trace with and to compare outputs on, instead of random input. Functions and arrays also
    define undeclared inputs; axes that vary are dynamic."""

class GateKeywords(TypedDict, total=False):
    """Options of `gate`, by name."""

    max_slower: float
    """Slowdown that passes, in percent."""
    max_larger: float
    """Growth of the file with its side files that passes, in percent."""
    max_drop: float | None
    """Largest drop in accuracy that passes, in points, or in the metric's own unit; default: no significant
    drop."""
    outputs: Literal["auto", "same", "any"]
    """Whether the outputs must be the same within the default tolerances of `diff`; auto: yes, unless
    accuracy decides or the precisions differ."""
    strict: bool
    """Fail also if nothing could be decided, or an artifact cannot run here."""
    skip_identical: bool
    """Pass files that are the same byte for byte without measuring them."""
    data: Dataset | None
    """Samples to time and compare outputs on, instead of random input."""
    evaluation: Dataset | None
    """Labelled samples for accuracy and output difference."""
    metric: str
    """Accuracy metric: auto, top1, top5, f1[:AVERAGE], miou, map[:50], wer, cer, ndcg[:K], neighbours[:K],
    spearman, perplexity[:masked], kl, cosine, mse or file.py:function."""
    inputs: Sequence[str]
    """Input that no artifact declares."""
    batch_size: int | None
    """Samples per call of a model with a dynamic batch."""
    threads: int
    """Threads of every artifact; 0 means all usable cores. Use 1 on a shared machine."""
    max_time_s: float
    """Time limit for the rounds and launches of a pair, in seconds; a clear case ends earlier."""
    device: str | None
    """Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1."""
    python: Sequence[str]
    """Python interpreter of an engine's workers."""
    timeout_s: float
    """Time without an answer after which a worker counts as failed, in seconds."""
    trust: bool
    """Run files without a matching manifest, and .pt2 and TorchScript files, which may run code."""

class InitKeywords(TypedDict, total=False):
    """Options of `init`, by name."""

    data: Dataset
    """Samples for calibration and for accuracy; one set is divided between the two if possible."""
    calibration: Dataset
    """Samples to calibrate on; default: those of --data."""
    evaluation: Dataset
    """Labelled samples for accuracy; default: those of --data."""
    inputs: Sequence[str]
    """Input of a MODEL that declares none."""
    weights: str
    """Weights of a model by name or of a function: random, or a .safetensors or state dict; default: the
    model's own, from the local cache."""
    download: bool
    """Let the package of a model by name download what its cache lacks."""
    targets: Sequence[str]
    """Runtime to build for: onnxruntime, openvino, tensorrt-rtx, tensorrt, torchscript; default: those
    installed."""
    gpus: Sequence[str]
    """Compute capability to build TensorRT-RTX engines for; default: the GPU here, or sm86 and sm89 for
    --target tensorrt-rtx."""
    metric: str
    """Accuracy metric: auto, top1, top5, f1[:AVERAGE], miou, map[:50], wer, cer, ndcg[:K], neighbours[:K],
    spearman, perplexity[:masked], kl, cosine, mse or file.py:function; auto chooses by the task and the
    labels."""
    max_time_s: float | None
    """Time limit of the measurement, in seconds; default: by the number of artifacts."""
    trust: bool
    """Load a .pt2 or TorchScript file, which may run code, or a SavedModel that touches files."""
    output: str | Path
    """Recipe to write."""
    max_drop: float | None
    """Largest drop in accuracy of a recommended artifact, in points."""
    force: bool
    """Overwrite an existing recipe."""

class InspectKeywords(TypedDict, total=False):
    """Options of `inspect`, by name."""

    nodes: bool
    """List every node of an ONNX file and its padding for Tensor Cores."""
    precision: Literal["tf32", "fp16", "bf16", "int8", "fp8", "mxfp8", "int4", "nvfp4"]
    """Precision for the column Tensor Cores of --nodes."""

class LayerDiffKeywords(TypedDict, total=False):
    """Options of `layer_diff`, by name."""

    data: Dataset | None
    """Samples to compare on, instead of random input."""
    samples: int | None
    """Largest number of samples; default: 64, spread over all (all for --metric), or 8 with --layers."""
    threads: int
    """Threads of each model; 0 means the runtime's default."""
    trust: bool
    """Run files without a matching manifest, and .pt2 and TorchScript files, which may run code."""
    taps: int | None
    """With --layers: number of tensors to read in one run; default: as many as memory allows."""
    max_builds: int | None
    """With --layers and an engine: largest number of builds of its parts; 0 compares only its outputs;
    default: 3 + log2 of the number of tensors."""
    threshold: float | None
    """With --layers: signal-to-noise ratio below which a tensor diverges; default: by precision."""
    save_results: str | Path | None
    """With --layers: file for the values around the first bad tensor, in Polygraphy's format."""

class LoadKeywords(TypedDict, total=False):
    """Options of `load`, by name."""

    threads: int
    """Threads of a CPU runtime; 0 means the runtime's default."""
    trust: bool
    """Run files without a matching manifest, and .pt2 and TorchScript files, which may run code."""
    streams: int
    """Number of concurrent inferences of an engine, each on a separate CUDA stream."""
    cuda_graph: bool
    """Replay an engine's inference from a CUDA graph."""
    runtime_cache: bool
    """Keep the kernels that TensorRT-RTX compiles in a file beside the engine."""

class EpContextKeywords(TypedDict, total=False):
    """Options of `package_ep_context`, by name."""

    embed: bool
    """Put the engine into the ONNX file."""
    provider: Literal["", "tensorrt-rtx", "tensorrt"]
    """Provider that will load it; default: the one for the engine."""

class TritonKeywords(TypedDict, total=False):
    """Options of `package_triton`, by name."""

    name: str
    """Name of the model in requests."""
    max_batch_size: int | None
    """Largest batch; 0 turns batching off; default: the largest batch of the profiles, or 4."""
    instances: int
    """Number of instances on each GPU, or on the CPU."""
    gpus: Sequence[int]
    """GPUs to run on; default: all."""
    kind: Literal["", "gpu", "cpu"]
    """Device to run on; default: the artifact's."""
    preferred_batch: Sequence[int]
    """Preferred batch sizes of dynamic batching."""
    max_queue_delay_us: int
    """Longest time a request waits for a larger batch, in microseconds."""
    dynamic_batching: bool
    """Turn dynamic batching off."""
    warm_up: bool | None
    """Warm the model up with a request of zeros; default: where the shapes are known."""
    warm_up_shapes: Sequence[str] | Mapping[str, object]
    """Shape of an input in the warm-up request, if the artifact leaves it open."""
    version_policy: str
    """Versions to serve: latest, latest:2, all or specific:1,3; default: Triton's, which is latest."""
    response_cache: bool
    """Cache responses, if the server has a response cache."""
    cuda_graph: bool
    """Execute an engine with CUDA graphs."""
    version: int
    """Number of the version to add."""
    overwrite: bool
    """Replace an existing version and a config.pbtxt that was edited."""
    trust: bool
    """Load a TorchScript file, which may run code."""

class QatKeywords(TypedDict, total=False):
    """Options of `qat`, by name."""

    target: Literal["onnxruntime", "openvino", "tensorrt"]
    """Runtime whose grids and Q/DQ placement apply; tensorrt also for TensorRT-RTX."""
    isa: Literal["auto", "avx2", "avx-vnni", "avx512-vnni", "amx", "neon", "neon-dotprod", "i8mm"]
    """Instruction set of the CPU that will run INT8; auto means this machine's."""
    exclude: Sequence[str]
    """Globs of modules (`fc`, `stages.0.*`) to leave in floating point."""

class QuantizeKeywords(TypedDict, total=False):
    """Options of `quantize`, by name."""

    method: str
    """Method that chooses the thresholds: minmax, percentile[:NUMBER], entropy, mse or auto; default: the
    method of the ranges."""
    layers: Sequence[str] | Mapping[str, object]
    """Precision of layers by name, glob or operator type: fp32, fp16, bf16 or int8."""
    float_precision: Literal["auto", "fp32", "fp16", "bf16"]
    """Precision of layers that stay in floating point; auto: fp16 in INT8 of TensorRT, else fp32."""
    rules: Sequence[str] | Mapping[str, object]
    """Kind of an output: classes, embedding, labels or signal."""
    allow_loss: bool
    """Keep an INT8 model whose outputs on the data differ by more than `diff` allows."""
    mode: Literal["static", "dynamic", "weights"]
    """Kind of quantization: calibrated scales, scales computed at run time, or weights only."""
    exclude: Sequence[str]
    """Layers that stay in floating point: name, glob or operator type."""
    only: Sequence[str]
    """The only layers to quantize: name, glob or operator type."""
    isa: Literal["auto", "avx2", "avx-vnni", "avx512-vnni", "amx", "neon", "neon-dotprod", "i8mm"]
    """Instruction set of the CPU that will run INT8; auto means this machine's. Files for avx2 run on every
    x86 CPU."""
    correct_bias: bool
    """Subtract the mean error of static INT8, measured on the data, from the biases."""
    search: bool
    """Quantize static INT8 in several ways and keep the graph with the most accurate outputs."""
    block_size: int
    """Number of weights that share a scale in mode weights; 0 means one scale per output channel."""
    rounding: Literal["rtn", "gptq"]
    """Rounding of weights: to nearest (rtn), or to the least output error on the data (gptq)."""
    quant_format: Literal["", "nbits", "qdq"]
    """Operators of mode weights: ONNX Runtime's (nbits) or ONNX's (qdq); default: the target's."""
    target: Literal["onnxruntime", "openvino", "tensorrt"]
    """Runtime that the Q/DQ nodes are placed for."""
    precision: Literal["int8", "fp8", "int4", "fp16", "bf16"]
    """Precision of the graph to write; for TensorRT alone: fp8 on GPUs from sm89."""
    weight_type: Literal["int8", "uint8"]
    """Type of the weights in mode dynamic."""
    balance: bool
    """Equalize the channels of static INT8 where that improves the outputs on the data."""
    max_damage: float | None
    """Leave the most sensitive layers of static INT8 in floating point until the outputs on the data reach
    this signal-to-noise ratio."""
    data: Dataset | None
    """Samples to measure output errors on and to fit corrections to."""

class ReportKeywords(TypedDict, total=False):
    """Options of `report`, by name."""

    max_drop: float | None
    """Largest drop in accuracy of a recommended artifact, by the upper end of its interval, in points;
    default: no significant drop."""
    max_size_mb: float | None
    """Largest size of a recommended artifact, with its side files, in MB."""
    max_latency_ms: float | None
    """Largest median latency of a recommended artifact, in ms."""
    layers: Sequence[str | Path]
    """Layer comparison of `diff --layers`; default: layers*.json beside RESULTS."""
    ranges: str | Path | None
    """Ranges file; the report draws the histograms with the largest errors."""
    recipe: str | Path | None
    """Recipe to show if RESULTS has none."""

class ReproduceKeywords(TypedDict, total=False):
    """Options of `reproduce`, by name."""

    target: Literal["onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"]
    """Runtime that the artifact is for."""
    method: str
    """Method that chooses the thresholds: minmax, percentile[:NUMBER], entropy, mse or auto; default: the
    method of the ranges."""
    layers: Sequence[str] | Mapping[str, object]
    """Precision of layers by name, glob or operator type: fp32, fp16, bf16 or int8."""
    float_precision: Literal["auto", "fp32", "fp16", "bf16"]
    """Precision of layers that stay in floating point; auto: fp16 in INT8 of TensorRT, else fp32."""
    rules: Sequence[str] | Mapping[str, object]
    """Kind of an output: classes, embedding, labels or signal."""
    allow_loss: bool
    """Keep an INT8 model whose outputs on the data differ by more than `diff` allows."""
    mode: Literal["static", "dynamic", "weights"]
    """Kind of quantization: calibrated scales, scales computed at run time, or weights only."""
    exclude: Sequence[str]
    """Layers that stay in floating point: name, glob or operator type."""
    only: Sequence[str]
    """The only layers to quantize: name, glob or operator type."""
    isa: Literal["auto", "avx2", "avx-vnni", "avx512-vnni", "amx", "neon", "neon-dotprod", "i8mm"]
    """Instruction set of the CPU that will run INT8; auto means this machine's. Files for avx2 run on every
    x86 CPU."""
    correct_bias: bool
    """Subtract the mean error of static INT8, measured on the data, from the biases."""
    search: bool
    """Quantize static INT8 in several ways and keep the graph with the most accurate outputs."""
    block_size: int
    """Number of weights that share a scale in mode weights; 0 means one scale per output channel."""
    rounding: Literal["rtn", "gptq"]
    """Rounding of weights: to nearest (rtn), or to the least output error on the data (gptq)."""
    quant_format: Literal["", "nbits", "qdq"]
    """Operators of mode weights: ONNX Runtime's (nbits) or ONNX's (qdq); default: the target's."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4", "mxfp8", "best"]
    """Precision that the layers must reach, or the build fails."""
    gpus: Sequence[str]
    """Compute capability to build for: sm75, sm80, sm86, sm89, sm120 or sm121 of TensorRT-RTX 1.7; in a
    recipe, cluster makes an artifact for each of the cluster's GPUs; default: this machine's GPU."""
    min_shapes: Sequence[str] | Mapping[str, object]
    """Smallest shape of an input."""
    opt_shapes: Sequence[str] | Mapping[str, object]
    """Shape of an input to optimize for."""
    max_shapes: Sequence[str] | Mapping[str, object]
    """Largest shape of an input."""
    calibrator: Literal["", "ranges", "native", "entropy", "minmax"]
    """Source of the INT8 scales of TensorRT 8.5 to 10, in place of Q/DQ: the ranges file (ranges), or
    TensorRT's own calibrator on the data."""
    allow_fallback: bool
    """Keep an artifact that does not reach its precision or accuracy, with a warning."""
    strict: bool
    """Fail if a single layer does not reach the precision."""
    tensorrt: TensorRTOptions | Mapping[str, object]
    """TensorRT's own options."""
    ranges: str | Path | None
    """Ranges file to quantize the model with before the build."""
    inputs: Sequence[str]
    """Input of a PyTorch MODEL."""
    threads: int
    """Threads of a CPU runtime; 0 means the runtime's default."""
    data: Dataset | None
    """Samples for the INT8 accuracy check, the artifact check and the calibrator."""
    calibration_cache: str | Path | None
    """File for the scales that TensorRT's calibrator computes."""
    trust: bool
    """Load a .pt2 or TorchScript file, which may run code."""
    max_time_s: float
    """Longest time to spend on making the graph smaller."""

class RunKeywords(TypedDict, total=False):
    """Options of `run`, by name."""

    output: str | Path | None
    """Folder of the artifacts, instead of the recipe's."""
    again: Sequence[str]
    """Stage to run again although nothing changed, such as bench."""
    trust: bool
    """Run code that the recipe names outside its folder, write there, and load files with code."""

class SimplifyKeywords(TypedDict, total=False):
    """Options of `simplify`, by name."""

    data: Dataset | None
    """Samples to check the outputs on, instead of random input."""

class SweepKeywords(TypedDict, total=False):
    """Options of `sweep`, by name."""

    output: str | Path | None
    """Folder of the artifacts, instead of the recipe's."""
    again: Sequence[str]
    """Stage to run again although nothing changed, such as bench."""
    trust: bool
    """Run code that the recipe names outside its folder, write there, and load files with code."""
    only: Sequence[str]
    """Cells to build and measure: glob over their names, such as *-int8; default: all."""

class TuneKeywords(TypedDict, total=False):
    """Options of `tune`, by name."""

    max_drop: float
    """Largest drop in accuracy, in points, or in the metric's own unit."""
    calibration: Dataset | None
    """Samples to calibrate on, separate from those of --data, which are the default."""
    metric: str
    """Accuracy metric: auto, top1, top5, f1[:AVERAGE], miou, map[:50], wer, cer, ndcg[:K], neighbours[:K],
    spearman, perplexity[:masked], kl, cosine, mse or file.py:function."""
    targets: Sequence[str]
    """Runtime to try: onnxruntime or openvino; default: those installed."""
    inputs: Sequence[str]
    """Input of a PyTorch MODEL."""
    method: str
    """Method that chooses the thresholds: minmax, percentile[:NUMBER], entropy, mse or auto."""
    exclude: Sequence[str]
    """Layers that stay in floating point: name, glob or operator type."""
    samples: int | None
    """Largest number of samples to measure accuracy on."""
    batch_size: int | None
    """Samples per call of the latency measurement."""
    threads: int
    """Threads of every artifact; 0 means all cores."""
    max_time_s: float
    """Time limit of each measurement, in seconds."""

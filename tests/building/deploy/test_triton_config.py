"""The configuration of engines, read by Triton's own definitions, against the rules of its backends.

What is written for Triton, protobuf's own parser reads back (`ModelConfig` is Triton's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging_engines import make_engine

from qcompile.building.deploy import TritonOptions
from qcompile.building.deploy.triton_config import Config, Message, format_config, make_config
from qcompile.building.deploy.triton_model import read_triton_model
from qcompile.errors import ArtifactError, InvalidOption

definition = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="needs tritonclient[grpc]")

Make = Callable[..., Any]


def dims(tensors: Any) -> list[list[int]]:
    return [list(tensor.dims) for tensor in tensors]


def told(config: Config, words: str) -> bool:
    return any(words in note for note in config.notes)


def parse(fields: Message) -> Any:
    return text_format.Parse(format_config(fields), definition.ModelConfig())


@pytest.fixture
def configured(tmp_path: Path) -> Make:
    """`configured({"kind": "gpu"}, **engine)` returns an engine's configuration, parsed and as it is."""

    def make(options: Mapping[str, Any] | None = None, /, **engine: Any) -> tuple[Any, Config]:
        triton_model = read_triton_model(make_engine(tmp_path / "m.engine", **engine))
        config = make_config(triton_model, "net", TritonOptions(**(options or {})))
        return parse(config.fields), config

    return make


def test_a_dynamic_batch_leaves_dims_and_its_largest_is_the_profile_s(configured: Make) -> None:
    found, config = configured()
    assert (found.name, found.backend, found.platform) == ("net", "tensorrt", "tensorrt_plan")
    assert found.max_batch_size == configured({"max_batch_size": 16})[0].max_batch_size == 16
    assert dims((*found.input, *found.output)) == [[3, 8, 8], [5]]
    assert found.HasField("dynamic_batching")
    (group,) = found.instance_group
    assert (group.count, list(group.gpus), list(group.profile)) == (1, [], [])
    assert definition.ModelInstanceGroup.Kind.Name(group.kind) == "KIND_GPU"
    assert told(config, "the server must have that version")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("", ""), ("static", ""), ("profile", "ON_PROFILE_CHANGE"), ("runtime", "ON_PROFILE_CHANGE")],
)
def test_contexts_have_the_memory_that_the_build_says(strategy: str, expected: str, configured: Make) -> None:
    found, config = configured(options={"allocation_strategy": strategy})
    parameter = found.parameters["execution_context_allocation_strategy"].string_value
    assert parameter == expected
    assert told(config, "not for the shapes of a request") == (strategy == "runtime")


def test_engines_are_warmed_up_with_zeros_at_the_optimum(configured: Make) -> None:
    (sample,) = configured()[0].model_warmup
    assert sample.batch_size == 4
    assert list(sample.inputs["x"].dims) == [3, 8, 8]
    assert sample.inputs["x"].WhichOneof("input_data_type") == "zero_data"
    assert not configured({"warm_up": False})[0].model_warmup
    # A smaller largest batch cuts the optimum; a profile above it is not warmed up.
    assert configured({"max_batch_size": 2})[0].model_warmup[0].batch_size == 2
    above = {"x": ((8, 3, 8, 8), (8, 3, 8, 8), (16, 3, 8, 8))}
    assert not configured({"max_batch_size": 2}, profiles=[above])[0].model_warmup


def test_several_profiles_are_all_given_and_the_largest_batch_is_theirs(configured: Make) -> None:
    few = {"x": ((1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8))}
    many = {"x": ((8, 3, 8, 8), (16, 3, 8, 8), (32, 3, 8, 8))}
    found, config = configured(profiles=[few, many])
    assert found.max_batch_size == 32
    assert list(found.instance_group[0].profile) == ["0", "1"]
    assert [sample.batch_size for sample in found.model_warmup] == [1, 16]
    assert told(config, "a batch of 3-7")


def test_the_batch_is_what_all_inputs_of_a_profile_take(configured: Make) -> None:
    profile = {"a": ((2, 4), (4, 4), (8, 4)), "b": ((1, 4), (4, 4), (6, 4))}
    found, config = configured(inputs={"a": ("batch", 4), "b": ("batch", 4)}, profiles=[profile])
    assert found.max_batch_size == 6
    assert told(config, "no profile takes a batch of 1:")


def test_a_fixed_batch_takes_whole_shapes(configured: Make) -> None:
    found, config = configured(inputs={"x": (4, 3, 8, 8)}, outputs={"y": (4, 5)}, profiles=[])
    assert found.max_batch_size == 0
    assert dims((*found.input, *found.output)) == [[4, 3, 8, 8], [4, 5]]
    assert not found.HasField("dynamic_batching")
    (sample,) = found.model_warmup
    assert (sample.batch_size, list(sample.inputs["x"].dims)) == (1, [4, 3, 8, 8])
    assert told(config, "the first axis of 'x' (4x3x8x8) is not dynamic")


@pytest.mark.parametrize(
    ("first", "engine"),
    [
        ("batch, detections", {"outputs": {"boxes": ("detections", 6)}}),
        ("?", {"inputs": {"x": ("?", 3, 8, 8)}, "outputs": {"y": ("?", 5)}}),
    ],
    ids=["of other names", "without a name"],
)
def test_first_axes_are_no_batch_unless_said(configured: Make, first: str, engine: dict[str, Any]) -> None:
    found, config = configured(**engine)
    assert found.max_batch_size == 0
    assert found.output[0].dims[0] == -1
    assert told(config, f"the first axes are {first}, which may not be one batch")
    found, config = configured({"max_batch_size": 8}, **engine)
    assert found.max_batch_size == 8
    assert told(config, f"the first axes {first} are taken for one batch")


def test_shape_tensors_are_marked_and_never_batched(configured: Make) -> None:
    profile = {"x": ((1, 3), (2, 3), (4, 3)), "size": ((1, 1), (8, 8), (16, 16))}
    engine: dict[str, Any] = {
        "inputs": {"x": ("batch", 3), "size": (2,)}, "outputs": {"y": ("batch", 3)},
        "profiles": [profile], "dtypes": {"size": "int32"},
    }  # fmt: skip
    found, config = configured(**engine)
    assert [item.is_shape_tensor for item in found.input] == [False, True]
    assert found.max_batch_size == 0
    assert not found.model_warmup
    assert told(config, "holds a shape")
    with pytest.raises(InvalidOption, match="size holds a shape"):
        configured({"max_batch_size": 4}, **engine)


@pytest.mark.parametrize(
    ("dtype", "name", "version"),
    [
        *((name, name.upper().replace("BFLOAT", "BF").replace("FLOAT", "FP"), "10.16.1.11")
          for name in ("float16", "bfloat16", "int8", "uint8", "bool", "int64")),
        ("int64", "INT32", "8.6.1"),
    ],
)  # fmt: skip
def test_types_are_triton_s(configured: Make, dtype: str, name: str, version: str) -> None:
    found, config = configured(dtypes={"x": dtype}, version=version)
    assert definition.DataType.Name(found.input[0].data_type) == f"TYPE_{name}"
    assert told(config, "converted int64 x to int32") == (version == "8.6.1")


def test_every_option_comes_back(configured: Make) -> None:
    options = {
        "max_batch_size": 8, "instances": 2, "gpus": (0, 3), "preferred_batch": (8, 4),
        "max_queue_delay_us": 100, "version_policy": "specific:1,3", "response_cache": True,
        "cuda_graph": True,
    }  # fmt: skip
    found, config = configured(options)
    assert found.max_batch_size == 8
    assert (found.instance_group[0].count, list(found.instance_group[0].gpus)) == (2, [0, 3])
    assert list(found.dynamic_batching.preferred_batch_size) == [4, 8]
    assert found.dynamic_batching.max_queue_delay_microseconds == 100
    assert list(found.version_policy.specific.versions) == [1, 3]
    assert found.response_cache.enable
    assert found.optimization.cuda.graphs
    assert any(option.startswith("--cache-config=local,size=") for option in config.server_options)


@pytest.mark.parametrize(("policy", "count"), [("latest", 1), ("latest:2", 2), ("all", 0)])
def test_version_policies_are_read(configured: Make, policy: str, count: int) -> None:
    found = configured({"version_policy": policy})[0].version_policy
    assert found.WhichOneof("policy_choice") == policy.partition(":")[0]
    assert found.latest.num_versions == count


def test_without_dynamic_batching_the_server_must_be_told(configured: Make) -> None:
    found, config = configured({"dynamic_batching": False})
    assert not found.HasField("dynamic_batching")
    assert "--disable-auto-complete-config" in config.server_options


def test_how_an_engine_was_built_says_what_the_server_needs(configured: Make) -> None:
    options = {"version_compatible": True, "plugins": ["a.so", "b.so"], "weight_streaming": "50%"}
    _, config = configured(options=options)
    assert config.server_options == (
        "--backend-config=tensorrt,version-compatible=true",
        "--backend-config=tensorrt,plugins=a.so;b.so",
    )
    assert told(config, "all of them stay on the GPU")


def test_formats_that_are_not_linear_are_marked(tmp_path: Path) -> None:
    formats = ["x=float16:chw32", "y=float16:linear"]
    engine = make_engine(tmp_path / "m.engine", options={"io_formats": formats})
    fields = make_config(read_triton_model(engine), "net", TritonOptions()).fields
    tensors = (*fields["input"], *fields["output"])
    assert [tensor.get("is_non_linear_format_io") for tensor in tensors] == [True, None]


@pytest.mark.parametrize(
    ("options", "engine", "message"),
    [
        ({"max_batch_size": 17}, {}, "the profiles of .* end at 16"),
        ({"preferred_batch": (4, 32)}, {}, "`preferred_batch` 32: max_batch_size is 16"),
        ({"max_batch_size": 1, "preferred_batch": (1,)}, {}, "there are no batches to form"),
        ({"kind": "cpu"}, {}, "runs only on gpu"),
        ({"warm_up_shapes": {"x": (1, 3, 8, 8)}}, {}, "at the optimum of its profiles"),
        ({}, {"dtypes": {"x": "float64"}}, "'x' is float64; Triton's tensorrt backend takes bfloat16, bool"),
        ({}, {"outputs": {"y": ("batch", 0)}}, "'y' is .*; Triton takes no extent of 0"),
        ({}, {"outputs": {"y": ()}}, "'y' is a scalar; only Triton's onnxruntime backend takes scalars"),
        ({}, {"outputs": {"": ("batch",)}}, "an input or output has no name"),
    ],
)
def test_what_triton_or_an_engine_cannot_follow_is_refused(
    configured: Make, options: dict[str, Any], engine: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidOption, ArtifactError), match=message):
        configured(options, **engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instances": 0}, "`instances` 0: at least 1"),
        ({"max_batch_size": -1}, "`max_batch_size` -1: at least 0"),
        ({"max_queue_delay_us": -1}, "`max_queue_delay_us`"),
        ({"gpus": (0, 0)}, "given twice"),
        ({"gpus": (-1,)}, "`gpus\\[0\\]` -1"),
        ({"kind": "cpu", "gpus": (0,)}, "belongs to `kind` gpu"),
        ({"kind": "tpu"}, "gpu, cpu is required"),
        ({"preferred_batch": (0,)}, "`preferred_batch\\[0\\]` 0"),
        ({"dynamic_batching": False, "preferred_batch": (4,)}, "excludes it"),
        ({"warm_up": False, "warm_up_shapes": {"x": (1,)}}, "`warm_up` is off, which excludes"),
        *(
            ({"version_policy": text}, "is required")
            for text in ("newest", "latest:0", "specific:", "specific:a")
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        TritonOptions(**options)


extents = st.integers(1, 4)
shapes = st.lists(st.one_of(extents, st.sampled_from(["batch", "n", "?"])), min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    data=st.data(),
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=4, unique=True
    ),
)
def test_any_engine_s_configuration_keeps_triton_s_rules(
    tmp_path: Path, data: st.DataObject, names: list[str]
) -> None:
    """Rules: full shape is [-1] + dims where batched, else dims; each axis as the engine has it; the
    largest batch is one that a profile takes; warm-up shapes lie in a profile."""
    tensors = {name: data.draw(shapes, label=name) for name in names}
    if data.draw(st.booleans(), label="batched"):
        tensors = {name: ["batch", *shape[1:]] for name, shape in tensors.items()}
    count = data.draw(st.integers(1, len(names) - 1))
    inputs, outputs = ({name: tensors[name] for name in part} for part in (names[:count], names[count:]))
    profile = {}
    for name, shape in inputs.items():
        if any(isinstance(extent, str) for extent in shape):
            least = [extent if isinstance(extent, int) else data.draw(extents) for extent in shape]
            most = [
                extent if isinstance(extent, int) else low + data.draw(extents)
                for extent, low in zip(shape, least, strict=True)
            ]
            profile[name] = (least, most, most)
    engine = make_engine(
        tmp_path / "m.engine", inputs=inputs, outputs=outputs, profiles=[profile] if profile else []
    )
    found = parse(make_config(read_triton_model(engine), "net", TritonOptions()).fields)
    assert [item.name for item in found.input] == list(inputs)
    for item in (*found.input, *found.output):
        own = list(item.reshape.shape) if item.HasField("reshape") else list(item.dims)
        full = [-1, *own] if found.max_batch_size else own
        assert full == [extent if isinstance(extent, int) else -1 for extent in tensors[item.name]]
        assert len(item.dims) > 0
    if found.max_batch_size:
        assert len({shape[0] for shape in tensors.values()} - {"?"}) == 1
        assert all(shape[0] != "?" for shape in tensors.values())
        assert found.max_batch_size == min(most[0] for _, _, most in profile.values())
    for sample in found.model_warmup:
        for name, item in sample.inputs.items():
            own = list(item.dims) if tensors[name][1:] or not found.max_batch_size else []
            full = [sample.batch_size, *own] if found.max_batch_size else own
            least, _, most = profile.get(name, (tensors[name],) * 3)
            assert all(low <= extent <= high for low, extent, high in zip(least, full, most, strict=True))


@pytest.mark.parametrize(
    "fields", [{"field_of_tomorrow": 1}, {"max_batch_size": "many"}, {"input": [{"data_type": "TYPE_FP12"}]}]
)
def test_what_triton_s_definitions_do_not_know_is_refused(fields: Message) -> None:
    with pytest.raises(ArtifactError, match=r"tritonclient \d.* refuses it") as raised:
        format_config(fields)
    assert raised.value.hint == "install a newer tritonclient"

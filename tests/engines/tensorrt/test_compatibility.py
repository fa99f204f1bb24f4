"""An engine of another TensorRT or GPU is refused by its manifest, before TensorRT is asked."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from qcompile.artifact import Manifest
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.compatibility import check_loadable, target_of
from qcompile.errors import ArtifactError

H200 = Gpu("NVIDIA H200", "sm90", 141 << 30, "12.8")
A10 = Gpu("NVIDIA A10", "sm86", 24 << 30, "12.4")
T4 = Gpu("Tesla T4", "sm75", 16 << 30, "12.4")


def adapter(version: str) -> Adapter:
    """Only name and version are read."""
    return Adapter(SimpleNamespace(__name__="tensorrt", __version__=version), "tensorrt")


def manifest(
    version: str, gpus: list[str], *, proof: dict[str, object] | None = None, **options: object
) -> Manifest:
    """A manifest of an engine built by a version for GPUs."""
    return Manifest(
        "engine",
        "build",
        tools={"tensorrt": version},
        device={"gpu": "NVIDIA H200", "gpus": gpus},
        options=options,
        proof=proof or {},
    )


def loads(built: Manifest, version: str, gpu: Gpu) -> None:
    check_loadable(Path("m.engine"), built, adapter(version), gpu)


@pytest.mark.parametrize("version", ["8.5.3.1", "8.5.3.2", "8.5.3"])
def test_up_to_8_5_the_first_three_numbers_of_a_version_must_be_the_same(version: str) -> None:
    loads(manifest("8.5.3.1", ["sm90"]), version, H200)


@pytest.mark.parametrize(
    ("built", "here", "fits"),
    [
        # "expecting library version 8.6.1.6 got 8.6.1.2, please rebuild": NVIDIA/TensorRT issue 3069; 3793.
        ("8.6.1.2", "8.6.1.6", False),
        ("9.2.0.4", "9.2.0.5", False),
        ("8.6.1.6", "8.6.1.6", True),
        ("8.6.1", "8.6.1.6", True),  # the fourth is not known
        ("10.16.1.11", "10.16.1.12", False),
    ],
)
def test_from_8_6_on_all_four_must_be(built: str, here: str, *, fits: bool) -> None:
    if fits:
        loads(manifest(built, ["sm90"]), here, H200)
    else:
        with pytest.raises(ArtifactError, match=rf"was built by tensorrt {re.escape(built)}; here is"):
            loads(manifest(built, ["sm90"]), here, H200)


@pytest.mark.parametrize("version", ["8.5.2.1", "8.6.1.6", "10.0.1.6"])
def test_another_version_is_named_with_the_one_here(version: str) -> None:
    with pytest.raises(
        ArtifactError, match=rf"was built by tensorrt 8\.5\.3\.1; here is {version}"
    ) as caught:
        loads(manifest("8.5.3.1", ["sm90"]), version, H200)
    assert "`version_compatible`" in caught.value.hint


@pytest.mark.parametrize(
    ("version", "fits"),
    [("10.3.0.1", True), ("10.9.1.0", True), ("10.2.0.9", False), ("11.0.0.0", False), ("8.6.1.6", False)],
)
def test_a_version_compatible_engine_runs_in_newer_ones_of_its_major_version(
    version: str, fits: bool
) -> None:
    built = manifest("10.3.0.26", ["sm90"], version_compatible=True)
    if fits:
        loads(built, version, H200)
    else:
        with pytest.raises(ArtifactError, match="was built by"):
            loads(built, version, H200)


def test_one_without_the_lean_runtime_runs_in_its_own_version_alone() -> None:
    built = manifest("10.3.0.26", ["sm90"], version_compatible=True, exclude_lean_runtime=True)
    loads(built, "10.3.0.26", H200)
    with pytest.raises(ArtifactError, match="was built by"):
        loads(built, "10.9.1.0", H200)


def test_a_manifest_without_the_version_fits_none() -> None:
    with pytest.raises(ArtifactError, match="of unknown version"):
        loads(Manifest("engine", "build", device={"gpus": ["sm90"]}), "8.5.3.1", H200)


def test_another_gpu_is_named_with_the_one_here() -> None:
    with pytest.raises(
        ArtifactError, match=r"was built for sm90 \(NVIDIA H200\); here is NVIDIA A10 \(sm86\)"
    ):
        loads(manifest("8.5.3.1", ["sm90"]), "8.5.3.1", A10)


def test_one_of_several_gpus_is_enough() -> None:
    loads(manifest("8.5.3.1", ["sm80", "sm86"]), "8.5.3.1", A10)


@pytest.mark.parametrize(("gpu", "fits"), [(H200, True), (A10, True), (T4, False)])
def test_an_engine_for_ampere_and_newer_runs_on_no_older_gpu(gpu: Gpu, fits: bool) -> None:
    built = manifest("10.3.0.26", ["sm80"], hardware_compatible="ampere+")
    if fits:
        loads(built, "10.3.0.26", gpu)
    else:
        with pytest.raises(ArtifactError, match="was built for sm80"):
            loads(built, "10.3.0.26", gpu)


def test_an_engine_without_weights_must_be_refitted_first() -> None:
    with pytest.raises(ArtifactError, match="stored without weights") as caught:
        loads(manifest("10.3.0.26", ["sm90"], strip_weights=True), "10.3.0.26", H200)
    assert "qcompile refit m.engine" in caught.value.hint
    loads(
        manifest("10.3.0.26", ["sm90"], strip_weights=True, proof={"refitted_with": "sha256:1"}),
        "10.3.0.26",
        H200,
    )


def test_the_first_bytes_tell_tensorrt_rtx_from_tensorrt() -> None:
    assert target_of(b"vtrt\0\0\0\0") == "tensorrt-rtx"
    assert target_of(b"ftrt\0\0\0\0") == "tensorrt"

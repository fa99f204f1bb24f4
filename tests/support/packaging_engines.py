"""Engines for packaging, which never looks into a plan: bytes and their manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qcompile.core.artifact import Manifest, commit
from qcompile.core.files import writing
from qcompile.spec.tensors import Dim, ModelIO, TensorInfo

Profile = Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[int]]]

IMAGE = {"x": ((1, 3, 8, 8), (4, 3, 8, 8), (16, 3, 8, 8))}


def make_engine(
    path: Path,
    *,
    inputs: Mapping[str, Sequence[Dim]] | None = None,
    outputs: Mapping[str, Sequence[Dim]] | None = None,
    profiles: Sequence[Profile] = (IMAGE,),
    dtypes: Mapping[str, str] | None = None,
    target: str = "tensorrt",
    version: str = "10.16.1.11",
    options: Mapping[str, object] | None = None,
    device: Mapping[str, object] | None = None,
    plan: bytes = b"plan",
) -> Path:
    """Write an engine as `qcompile build` does: x [batch,3,8,8] to y [batch,5] unless said otherwise."""

    def tensors(shapes: Mapping[str, Sequence[Dim]]) -> tuple[TensorInfo, ...]:
        known = dtypes or {}
        return tuple(TensorInfo(n, known.get(n, "float32"), tuple(s)) for n, s in shapes.items())

    io = ModelIO(
        tensors({"x": ("batch", 3, 8, 8)} if inputs is None else inputs),
        tensors({"y": ("batch", 5)} if outputs is None else outputs),
    )
    kinds = ("min", "opt", "max")
    ranges = [
        {name: dict(zip(kinds, map(list, item), strict=True)) for name, item in profile.items()}
        for profile in profiles
    ]
    manifest = Manifest(
        kind="engine", stage="build", target=target, precision="fp16", io=io, tools={"tensorrt": version},
        device={"gpu": "sm86"} if device is None else device, options=options or {},
        proof={"profiles": ranges},
    )  # fmt: skip
    with writing(path) as temporary:
        temporary.write_bytes(plan)
        commit(temporary, manifest)
    return path

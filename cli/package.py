"""`qcompile package`: artifacts laid out for what will serve them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import InvalidOption
from .session import RoadGroup, Session, command_options, examples, split


@click.group(cls=RoadGroup, short_help="lay an artifact out for a server")
def package() -> None:
    """Lay an artifact out for what will serve it."""


@package.command(
    short_help="a model repository for Triton Inference Server",
    epilog=examples(
        "qcompile package triton model.engine --name resnet -o model_repository",
        "qcompile package triton model.engine --name resnet -o model_repository --version 2 "
        "--version-policy latest:2 --instances 2 --gpus 0,1 --preferred-batch 4,8 --max-queue-delay-us 100",
        "qcompile package triton bert.onnx --name bert -o model_repository --max-batch-size 8 "
        "--warm-up-shapes input_ids:8x128",
    ),
)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Model repository.")
@click.option("--name", required=True, help="The model's name, as requests spell it.")
@click.option("--version", type=int, default=1, show_default=True, help="Number of the version to add.")
@click.option("--max-batch-size", type=int, metavar="N",
              help="Largest batch, 0 for none; by default what the profiles allow, or 4.")  # fmt: skip
@click.option(
    "--instances", type=int, default=1, show_default=True, help="Copies on each GPU, or on the CPU."
)
@click.option("--gpus", multiple=True, metavar="N,N", help="GPUs to run on; all by default.")
@click.option("--kind", type=click.Choice(["gpu", "cpu"]), help="Where to run; where it belongs by default.")
@click.option("--preferred-batch", multiple=True, metavar="N,N", help="Batch sizes that are sent at once.")
@click.option(
    "--max-queue-delay-us", type=int, default=0, metavar="N", help="Longest wait for a fuller batch."
)
@click.option("--no-dynamic-batching", is_flag=True, help="Put no requests together.")
@click.option("--warm-up/--no-warm-up", default=None,
              help="Run a request of zeros first; done by default where one can be made.")  # fmt: skip
@click.option("--warm-up-shapes", multiple=True, metavar="NAME:SHAPE", help="Shape where nothing tells it.")
@click.option("--version-policy", default="", metavar="POLICY",
              help="latest, latest:2, all, specific:1,3; Triton's own is latest.")  # fmt: skip
@click.option("--response-cache", is_flag=True, help="Keep answers, where the server has a cache.")
@click.option("--cuda-graph", is_flag=True, help="Run an engine as CUDA graphs.")
@click.option("--overwrite", is_flag=True, help="Replace this version, and a configuration changed by hand.")
@command_options
def triton(
    session: Session,
    artifact: Path,
    output: Path,
    name: str,
    version: int,
    max_batch_size: int | None,
    instances: int,
    gpus: tuple[str, ...],
    kind: str | None,
    preferred_batch: tuple[str, ...],
    max_queue_delay_us: int,
    no_dynamic_batching: bool,
    warm_up: bool | None,
    warm_up_shapes: tuple[str, ...],
    version_policy: str,
    response_cache: bool,
    cuda_graph: bool,
    overwrite: bool,
) -> None:
    """Put ARTIFACT (an engine, ONNX or TorchScript file) into a Triton model repository: as version N of
    model NAME, with config.pbtxt and its manifest."""
    from ..deploy import TritonOptions, package_triton
    from ..shapes import parse_shapes

    options = TritonOptions(
        max_batch_size=max_batch_size,
        instances=instances,
        gpus=_numbers(gpus, "--gpus"),
        kind=kind or "",
        preferred_batch=_numbers(preferred_batch, "--preferred-batch"),
        max_queue_delay_us=max_queue_delay_us,
        dynamic_batching=not no_dynamic_batching,
        warm_up=warm_up,
        warm_up_shapes=parse_shapes(warm_up_shapes, option="--warm-up-shapes"),
        version_policy=version_policy,
        response_cache=response_cache,
        cuda_graph=cuda_graph,
    )
    packaged = package_triton(
        artifact,
        output,
        name=name,
        version=version,
        options=options,
        overwrite=overwrite,
        progress=session.progress,
    )
    session.json(packaged.as_json())
    batch = f"batches up to {packaged.max_batch_size}" if packaged.max_batch_size else "no batching"
    session.say(f"{packaged.folder}  version {packaged.version}, {packaged.backend}, {batch}")
    session.say("  config.pbtxt")
    for file in packaged.files:
        session.say(f"  {packaged.version}/{file}")
    for check in packaged.checks:
        session.say(f"  checked: {check.name}: {check.detail}")
    session.say(f"  serve: {packaged.server}")
    session.warn(packaged.warnings)


def _numbers(values: Sequence[str], option: str) -> tuple[int, ...]:
    parts = split(values)
    for part in parts:
        if not part.isascii() or not part.isdigit():
            raise InvalidOption(
                f"{option}: {part!r} is not a number", hint="write for instance 0,1", option=option
            )
    return tuple(map(int, parts))

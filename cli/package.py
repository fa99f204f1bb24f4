"""`qcompile package`: artifacts laid out for what will serve them."""

from __future__ import annotations

import click

from ..spec.looking import TritonCommand
from .session import RoadGroup, Session
from .verb import verb


@click.group(cls=RoadGroup, short_help="lay an artifact out for a server")
def package() -> None:
    """Lay an artifact out for what will serve it."""


@verb(
    TritonCommand,
    "qcompile package triton model.engine --name resnet -o model_repository",
    "qcompile package triton model.engine --name resnet -o model_repository --version 2 "
    "--version-policy latest:2 --instances 2 --gpus 0,1 --preferred-batch 4,8 --max-queue-delay-us 100",
    "qcompile package triton bert.onnx --name bert -o model_repository --max-batch-size 8 "
    "--warm-up-shapes input_ids:8x128",
    short_help="a model repository for Triton Inference Server",
)
def triton(session: Session, given: TritonCommand) -> None:
    """Print what was laid out, and how to serve it."""
    from ..deploy import TritonOptions, package_triton
    from ..tensors import parse_shapes

    options = TritonOptions(
        max_batch_size=given.max_batch_size,
        instances=given.instances,
        gpus=given.gpus,
        kind=given.kind,
        preferred_batch=given.preferred_batch,
        max_queue_delay_us=given.max_queue_delay_us,
        dynamic_batching=given.dynamic_batching,
        warm_up=given.warm_up,
        warm_up_shapes=parse_shapes(given.warm_up_shapes, option="`warm_up_shapes`"),
        version_policy=given.version_policy,
        response_cache=given.response_cache,
        cuda_graph=given.cuda_graph,
    )
    packaged = package_triton(
        given.artifact,
        given.output,
        name=given.name,
        version=given.version,
        options=options,
        overwrite=given.overwrite,
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


package.add_command(triton)

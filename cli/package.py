"""`qcompile package`: artifacts laid out for what will serve them."""

from __future__ import annotations

import click

from ..spec.looking import EpContextCommand, TritonCommand
from .session import RoadGroup, Session
from .verb import verb


@click.group(cls=RoadGroup, short_help="package an artifact for a server")
def package() -> None:
    """Lay an artifact out for what will serve it."""


@verb(
    TritonCommand,
    "qcompile package triton model.engine --name resnet -o model_repository",
    "qcompile package triton model.engine --name resnet -o model_repository --version 2 "
    "--version-policy latest:2 --instances 2 --gpus 0,1 --preferred-batch 4,8 --max-queue-delay-us 100",
    "qcompile package triton bert.onnx --name bert -o model_repository --max-batch-size 8 "
    "--warm-up-shapes input_ids:8x128",
    short_help="write a model repository for Triton Inference Server",
)
def triton(session: Session, given: TritonCommand) -> None:
    """Print what was laid out, and how to serve it."""
    from ..deploy import package_triton

    packaged = package_triton(given.artifact, given.output, given, progress=session.progress)
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


@verb(
    EpContextCommand,
    "qcompile package ep-context model.engine -o model_ctx.onnx",
    "qcompile package ep-context model.engine -o model_ctx.onnx --embed",
    short_help="write an ONNX file with the engine inside for ONNX Runtime and Windows ML",
)
def ep_context(session: Session, given: EpContextCommand) -> None:
    """Print what was written, and what the provider needs."""
    from ..deploy import package_ep_context

    packaged = package_ep_context(given.artifact, given.output, given, progress=session.progress)
    session.json(packaged.as_json())
    place = "inside" if packaged.embedded else f"beside it, in {packaged.files[-1].name}"
    session.say(f"{packaged.path}  for {packaged.provider}, GPUs {packaged.architecture}, the engine {place}")
    for check in packaged.checks:
        session.say(f"  checked: {check.name}: {check.detail}")
    for option in packaged.provider_options:
        session.say(f"  provider option, where the provider has it: {option}")
    session.warn(packaged.warnings)


ep_context.name = "ep-context"
package.add_command(triton)
package.add_command(ep_context)

"""`qcompile export`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples


@click.command(
    short_help="PyTorch model to checked ONNX",
    epilog=examples(
        "qcompile export model.py:build -o model.onnx --input x:1x3x224x224",
        "qcompile export model.py:build -o model.onnx --input 'x:[batch,3,224,224]'",
        "qcompile export unet.py:build -o unet.onnx --input 'x:[batch,3,height=32..64..512,width=64]'",
        "qcompile export net.pt2 -o net.onnx --input x:1x16 --opset 18",
    ),
)
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="ONNX file.")
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:SHAPE[:DTYPE]",
    help="An input, in forward()'s order; a named axis is dynamic: height, height=64 (traced with 64), "
    "height=32..512. Repeatable.",
)
@click.option("--output-name", "outputs", multiple=True, help="A name for an output. Repeatable.")
@click.option("--dynamic", multiple=True, metavar="NAME:AXIS=LABEL", help="A dynamic axis. Repeatable.")
@click.option("--opset", type=int, default=20, show_default=True, help="ONNX opset.")
@click.option(
    "--target",
    type=click.Choice(["onnxruntime", "openvino", "tensorrt"]),
    help="For a model trained with fake quantization: what its Q/DQ is for.",
)
@click.option("--data", help="Samples to trace with and to compare outputs on, in place of made input.")
@click.option("--trust", is_flag=True, help="Load a .pt2 that runs code when it is loaded.")
@command_options
def export(
    session: Session,
    model: str,
    output: Path,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    opset: int,
    target: str | None,
    data: str | None,
    trust: bool,
) -> None:
    """Export MODEL to ONNX, check it, and compare its outputs with PyTorch's.

    MODEL is file.py:function, package.module:function, a .pt2, a TorchScript archive, or an .onnx file.
    """
    from ..compiler import export as export_model

    artifact = export_model(
        model,
        output,
        inputs=inputs,
        outputs=outputs,
        dynamic=dynamic,
        opset_version=opset,
        target=target,  # type: ignore[arg-type]
        data=data,
        trust=trust,
        progress=session.progress,
    )
    present_artifact(session, artifact)

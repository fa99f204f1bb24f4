"""`qcompile export`."""

from __future__ import annotations

from ..spec.models import ExportCommand
from .session import Session
from .tables import present_artifact
from .verb import verb


@verb(
    ExportCommand,
    "qcompile export timm:resnet18 -o model.onnx",
    "qcompile export 'torchvision:resnet18?classes=10' -o model.onnx --weights trained.safetensors",
    "qcompile export model.py:build -o model.onnx --input x:1x3x224x224",
    "qcompile export model.py:build -o model.onnx --input 'x:[batch,3,224,224]'",
    "qcompile export unet.py:build -o unet.onnx --input 'x:[batch,3,height=32..64..512,width=64]'",
    "qcompile export net.pt2 -o net.onnx --input x:1x16 --opset 18",
    "qcompile export model.keras -o model.onnx --python tensorflow=tf/bin/python",
)
def export(session: Session, given: ExportCommand) -> None:
    """Print the file and its checks."""
    from ..compiler.export import export as export_model

    present_artifact(session, export_model(given.model, given.output, given, progress=session.progress))

"""torchvision beside a PyTorch that its operators were not built for: import this before torchvision."""

from __future__ import annotations

from qcompile.model.named.torchvision_import import declare_torchvision_operators

declare_torchvision_operators()

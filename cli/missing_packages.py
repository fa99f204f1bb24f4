"""A package of an extra that is missing where nobody expected it, told as what to install."""

from __future__ import annotations

from ..errors import EngineUnavailable, QCompileError

_DISTRIBUTIONS = {"PIL": "pillow", "pynvml": "nvidia-ml-py", "google": "tritonclient", "grpc": "tritonclient"}
"""Module to its distribution, where the names differ by more than `_`."""


def missing_package(error: BaseException) -> QCompileError | None:
    """Return what to install for a failed import; None where it is of no extra of qcompile."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    from ..engines.doctor.extras import EXTRAS

    module = error.name.partition(".")[0]
    distribution = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
    extra = next((extra for extra, names in EXTRAS.items() if distribution in names), "")
    if not extra:
        return None
    return EngineUnavailable(
        f"{distribution} cannot be imported ({error})",
        hint=f"pip install 'qcompile[{extra}]'",
        engine=module,
        reason=str(error),
    )

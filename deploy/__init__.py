"""Package artifacts for the server that runs them."""

from ..spec.looking import TritonOptions
from .triton import Packaged, package_triton

__all__ = ["Packaged", "TritonOptions", "package_triton"]

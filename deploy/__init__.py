"""Package artifacts for the server that runs them."""

from .triton import Packaged, package_triton
from .triton_options import TritonOptions

__all__ = ["Packaged", "TritonOptions", "package_triton"]

"""Handing artifacts over: laid out and described for the server that will run them."""

from .triton import Packaged, package_triton
from .triton_options import TritonOptions

__all__ = ["Packaged", "TritonOptions", "package_triton"]

"""Handing artifacts over: laid out and described for the server that will run them."""

from ..spec.looking import TritonOptions
from .triton import Packaged, package_triton

__all__ = ["Packaged", "TritonOptions", "package_triton"]

"""Package artifacts for the server or the runtime that runs them."""

from ...spec.looking import TritonOptions
from .ep_context import EpContext, package_ep_context
from .triton import Packaged, package_triton

__all__ = ["EpContext", "Packaged", "TritonOptions", "package_ep_context", "package_triton"]

"""From MODEL and DATA to a recipe that runs at once."""

from .init import InitResult, init

__all__ = ["InitResult", "init"]

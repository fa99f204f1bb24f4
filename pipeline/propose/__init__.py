"""From MODEL and DATA to a recipe that runs at once.

model_facts, data, machine ─▶ choose ─▶ init
"""

from .init import InitResult, init

__all__ = ["InitResult", "init"]

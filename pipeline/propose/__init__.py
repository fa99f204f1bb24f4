"""From MODEL and DATA to a recipe that runs at once.

model_facts, data_facts, machine ─▶ choose, settings ─▶ recipe_text ─▶ init
"""

from .init import InitResult, init

__all__ = ["InitResult", "init"]

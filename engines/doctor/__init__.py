"""`qcompile doctor`: what is installed, what works here and how fast it can be, and the fix for the rest."""

from .diagnosis import Diagnosis, TargetState, doctor
from .problems import Problem, find_problems

__all__ = ["Diagnosis", "Problem", "TargetState", "doctor", "find_problems"]

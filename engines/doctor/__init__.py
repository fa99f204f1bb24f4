"""`qcompile doctor`: what is installed, what works here and how fast it can be, and the fix for the rest."""

from .diagnosis import Diagnosis, doctor, find_problems

__all__ = ["Diagnosis", "doctor", "find_problems"]

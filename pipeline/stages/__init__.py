"""Stages: the kinds, their keys, and the store of finished ones."""

"""Propose a ready-to-run recipe for MODEL and DATA."""

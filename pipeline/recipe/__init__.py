"""Recipes: their types, what they may name, and how they are written."""

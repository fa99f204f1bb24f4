"""Recipes: their types, the files and code that they name, and their text."""

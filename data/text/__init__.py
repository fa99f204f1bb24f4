"""Texts: lines, columns and pairs of them, through the model's tokenizer."""

"""Readers of DATA: arrays, images, texts, recordings, tables and functions, batch by batch."""

"""Shared foundation: files, child processes, this machine, texts, and artifacts with their manifests."""

"""Worker processes that run artifacts, and their protocol."""

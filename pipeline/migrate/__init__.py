"""Command lines of trtexec and Polygraphy become recipes."""

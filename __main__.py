"""`python -m qcompile`: run the command line without the current folder in `sys.path`."""

import os
import sys

if not getattr(sys.flags, "safe_path", False) and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]  # a user's `random.py` there would shadow the standard library's

from .cli import main

main()

"""Command line of a worker process: it runs this package's files with any interpreter, in any folder.

`python -m` and `python -c` put the current folder first in `sys.path`, where a `random.py` would be taken
for the standard library's. `-P` forbids it from Python 3.11 on. This removes the entry in every version,
before anything is imported. Another interpreter need not have qcompile installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

_START = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
folder, module = sys.argv[1:3]
del sys.argv[1:3]
import importlib.util, runpy
spec = importlib.util.spec_from_file_location(
    "qcompile", folder + "/__init__.py", submodule_search_locations=[folder]
)
package = importlib.util.module_from_spec(spec)
sys.modules["qcompile"] = package
spec.loader.exec_module(package)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def worker_command(module: str, *arguments: str, python: str = "") -> list[str]:
    """Return the words that run a module of this package as `__main__`.

    Args:
        module: Its full name.
        arguments: What it finds in `sys.argv[1:]`.
        python: Interpreter, or a script that runs one with the arguments it is given; by default this one.
    """
    folder = Path(__file__).resolve().parents[2]
    return [python or sys.executable, "-c", _START, str(folder), module, *arguments]

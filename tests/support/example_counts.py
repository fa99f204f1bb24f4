"""How many examples hypothesis draws in a test of arithmetic: few in CI, as many as are asked for by hand."""

from __future__ import annotations

import os

EXAMPLES = int(os.environ.get("QCOMPILE_TEST_EXAMPLES", "25"))

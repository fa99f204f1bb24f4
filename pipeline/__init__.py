"""`qcompile run`: a recipe becomes stages, keyed by content; what did not change is not made again."""

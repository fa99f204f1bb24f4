"""`qcompile run`: turn a recipe into stages keyed by content; only stages with a new key run."""

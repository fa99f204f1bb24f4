"""`qcompile diff`: the outputs of two artifacts, or their layers, compared."""

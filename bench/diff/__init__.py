"""`qcompile diff`: compare the outputs of two artifacts, or their layers."""

"""`qcompile simplify`: fewer nodes, the same model; one rewrite a file."""

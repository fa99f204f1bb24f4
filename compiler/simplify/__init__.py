"""`qcompile simplify`: rewrite a model with fewer nodes and equal outputs; one rewrite per file."""

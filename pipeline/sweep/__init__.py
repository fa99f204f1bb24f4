"""`qcompile sweep`: a matrix of models, shapes and artifacts, one ordinary recipe per model and shape.

recipe with [sweep] ── cells ─▶ recipes ── run ─▶ results.json of each ── sweep_results ─▶ sweep.json
"""

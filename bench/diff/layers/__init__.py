"""`qcompile diff --layers`: find the first tensor that diverges; few taps per run, statistics only.

sides ─▶ pairing ─▶ search ◀─▶ taps ─▶ job (in a worker) ─▶ outcome
"""

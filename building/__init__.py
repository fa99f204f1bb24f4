"""Building: the graph that a target gets, its engine, and the proof that it is what was asked for."""

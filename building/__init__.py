"""Lower a graph for its target, build the engine, verify it, and package artifacts for servers."""

"""The client's half: who the workers are, which of them gets a step, and what came of it."""

"""The processes that artifacts run in, and the one protocol that they speak."""

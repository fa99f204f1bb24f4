"""The gate: whether a new version may replace the old one."""

"""The gate: decide whether a new version may replace the old one."""

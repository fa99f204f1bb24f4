"""Gate: whether a new version is slower, larger or less accurate than the old one."""

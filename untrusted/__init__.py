"""Verbs on files of strangers: in a process of their own, with limits on memory and time."""

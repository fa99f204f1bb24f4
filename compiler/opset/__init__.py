"""Older opsets: a graph is written in the operators that an older parser knows, or refused; never altered."""

"""The version, apart from `__init__`: what lies below may ask for it."""

__version__ = "0.3.0"

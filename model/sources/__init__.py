"""Parse the MODEL argument and load its module or file."""

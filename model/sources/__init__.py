"""Sources: what MODEL may name, and the module or file that it becomes."""

"""TensorFlow's models: SavedModel folders, `.keras` and `.h5` files, in a process of their own.

That process may be another interpreter, since TensorFlow often has its own environment.
"""

"""Lower a graph to the operators of an older opset, or refuse it."""

"""Forms of model outputs, and rules to compare the outputs of two models."""

"""Models of torchvision, timm and transformers by their names: `torchvision:`, `timm:`, `hf:`."""

"""Layers that take the place of PyTorch's or a model's own and compute faster."""

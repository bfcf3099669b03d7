"""Ports of workflow files of siiRL (DistFlow, Wang et al. 2025, arXiv:2507.13833)."""

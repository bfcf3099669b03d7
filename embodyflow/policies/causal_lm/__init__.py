"""Any causal language model of transformers, and its critic."""

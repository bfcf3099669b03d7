"""Tables of the page of benchmarks, from the figures in ``benchmarks/results``."""

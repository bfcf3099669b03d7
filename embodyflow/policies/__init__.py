"""Policies by kind of job, the protocols that they follow, and the parts that all may use."""

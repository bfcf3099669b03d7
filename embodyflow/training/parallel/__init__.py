"""The ranks of a trainer group and how they share a model: data parallelism, sharding and tensor parallelism."""

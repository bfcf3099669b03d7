"""What one process can do, without Ray: vector environments, embodied rollouts, FSDP training."""

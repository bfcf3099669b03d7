"""OpenVLA and OpenVLA-OFT, with weights of published checkpoints or random ones."""

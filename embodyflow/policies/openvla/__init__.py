"""OpenVLA and OpenVLA-OFT, of the published checkpoints or of random weights."""

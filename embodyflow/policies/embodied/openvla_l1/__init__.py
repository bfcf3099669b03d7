"""OpenVLA-OFT with a regression head (L1), whose actions get a likelihood to train on."""

"""The two arms of ALOHA (Zhao et al., 2023, arXiv:2304.13705) in the scene of the package gym-aloha."""

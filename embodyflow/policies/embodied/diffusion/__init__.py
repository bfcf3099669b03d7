"""A diffusion policy of states, which imitates demonstrations and learns by the log-probs of its denoising steps."""

"""Policies that choose the noise of a frozen policy which denoises, and their critics of states and noise (DSRL)."""

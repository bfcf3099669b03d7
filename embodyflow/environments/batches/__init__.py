"""Simulators that step all lanes of a batch at once, behind the interface of Gymnasium's vector environments."""

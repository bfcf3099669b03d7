"""The rooms of a project: written, brought to a newer version, and ported from siiRL."""

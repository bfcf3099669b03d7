"""The runs in a folder: found, listed, read, answered and resumed."""

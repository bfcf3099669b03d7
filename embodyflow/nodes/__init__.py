"""What a graph node is to the machinery: its declared columns, how it is called, what it is given."""

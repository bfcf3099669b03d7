"""Facts of a stream of groups: their names, and the weights that their rows went on with."""

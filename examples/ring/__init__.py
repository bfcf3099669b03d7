"""Two agents that add numbers, as a workflow file of siiRL plays them."""

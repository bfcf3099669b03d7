"""All comparisons of speed with peers in their quick forms, as one table; ``make bench`` runs them."""

"""Progress reward of SRPO: failed episodes score by their distance to successful ones."""

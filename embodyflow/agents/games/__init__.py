"""Games of several players by text, for agents that play with each other and with themselves."""

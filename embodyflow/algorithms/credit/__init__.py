"""Credit within an episode: turns, agents and their baselines, and where a reward is placed."""

"""ACT, Action Chunking with Transformers, in LeRobot's layout, with a likelihood of its actions for RL."""

"""Episodes that a scripted expert plays."""

import gymnasium as gym
import numpy as np

Env = gym.Env[dict[str, np.ndarray], np.ndarray]


def play(env: Env, goal: int) -> tuple[np.ndarray, bool]:
    """Let the environment's expert play an episode; return its states and whether it succeeds."""
    observation, _ = env.reset(options={"goal": goal})
    states, over, info = [observation["state"]], False, {}
    while not over:
        observation, _, terminated, truncated, info = env.step(env.unwrapped.expert_action())  # type: ignore[attr-defined]
        states.append(observation["state"])
        over = terminated or truncated
    return np.stack(states), bool(info["success"])

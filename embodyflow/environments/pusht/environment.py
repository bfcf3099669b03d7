"""PushT behind the interface of embodied environments."""

from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from embodyflow.environments.goal_env import GoalEnv, Observation
from embodyflow.environments.pusht.expert import Pusher
from embodyflow.environments.pusht.shape import AGENT_RADIUS, CENTRE, PLANE, TARGET, Floats, corners, distance, rotation

STATE_DIM = 36
STEP = 50.0
"""Displacement of the disc's goal by an action of 1, in pixels."""
FRAME = 256


class PushTEnv(GoalEnv):
    """A disc pushes a T onto its target in the plane, from numbered poses of both.

    The physics, the target and the coverage are gym-pusht's. The observation is a dict. ``state`` is float32 [36], in
    units of 256 pixels, half the side of the plane::

        0:2    position of the disc
        2:4    velocity of the disc, per second
        4:20   corners of the T - disc
        20:36  corners of the T at the target - corners of the T

    The action is float32 [2] in [-1, 1]: displacement of the disc's goal from the disc, where 1 is 50 pixels. There are
    10 actions per second. An episode is *terminated* when the T covers more than ``coverage`` of its target, which is
    success, and *truncated* after ``max_steps``. The reward is the share that is covered, divided by ``coverage``, at
    most 1. ``info`` has ``success`` (bool), ``coverage`` (float), ``instruction`` (str) and ``goal`` (int).
    """

    tasks = ("push_t",)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 Gymnasium's own
    instruction = "push the T onto its target"

    def __init__(
        self,
        task: str = "push_t",
        split: Literal["train", "demo", "eval"] = "train",
        max_steps: int = 300,
        render_mode: str | None = None,
        spread: float = 150.0,
        turn: float = float(np.pi),
        coverage: float = 0.95,
    ) -> None:
        """Build the simulator.

        Args:
            task: Task, ``push_t``.
            split: Split of the goals.
            max_steps: Number of steps after which an episode is truncated.
            render_mode: Render mode, ``None`` or ``"rgb_array"``, for :meth:`render`.
            spread: Largest distance of the T from its target at the start, in pixels; the smallest is half of it.
            turn: Largest turn of the T against its target at the start, in radians.
            coverage: Share of the target that must be covered; gym-pusht's is 0.95.

        Raises:
            ValueError: An argument is not one of the allowed values.
            ModuleNotFoundError: The extra ``pusht`` is not installed.
        """
        super().__init__(task, split, max_steps, render_mode)
        if not 30 <= spread <= 150:
            raise ValueError(f"spread={spread}: must be from 30 to 150")
        if not 0 <= turn <= np.pi:
            raise ValueError(f"turn={turn}: must be from 0 to pi")
        if not 0 < coverage < 1:
            raise ValueError(f"coverage={coverage}: must be between 0 and 1")
        self._spread, self._turn, self._coverage = spread, turn, coverage
        self._sim = build()
        self._expert = Pusher()
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space: Space[Any] = Dict({"state": Box(-np.inf, np.inf, (STATE_DIM,), np.float32)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the episode of ``options["goal"]``, or of a goal drawn from the seed.

        Raises:
            ValueError: The split has no such goal.
        """
        self._begin(seed, options)
        self._expert, rng = Pusher(), self._draws_of(self._goal)
        pose = self._start(rng)
        agent = rng.uniform(50.0, 450.0, 2)
        while distance(agent, pose) < AGENT_RADIUS + 10:
            agent = rng.uniform(50.0, 450.0, 2)
        # gym-pusht sets the T's position before its angle, and the angle turns the T about its centre of gravity.
        place = pose[:2] - CENTRE + rotation(pose[2]) @ CENTRE
        self._sim.reset(seed=0, options={"reset_to_state": [*agent, *place, pose[2]]})
        return self._observation(), self._covered(float(self._sim._get_coverage()))

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [2] in [-1, 1]."""
        aim = self._agent + STEP * np.asarray(action, np.float64)
        covered = float(self._sim.step(np.clip(aim, AGENT_RADIUS, PLANE - AGENT_RADIUS))[4]["coverage"])
        info = self._covered(covered)
        reward, success = min(covered / self._coverage, 1.0), info["success"]
        return self._observation(), reward, success, self._is_cut(success), info

    def expert_action(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action, float32 [2] in [-1, 1]."""
        move = self._expert.act(self._agent, self._pose)
        return np.clip(move / STEP, -1.0, 1.0).astype(np.float32)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, uint8 [256, 256, 3]."""
        return None if self.render_mode is None else np.asarray(self._sim.render())

    def close(self) -> None:
        """Close the simulator."""
        self._sim.close()

    def _start(self, rng: np.random.Generator) -> Floats:
        """Draw the T's first pose, float64 [3]."""
        far, direction = rng.uniform(self._spread / 2, self._spread), rng.uniform(-np.pi, np.pi)
        angle = TARGET[2] + rng.uniform(-self._turn, self._turn)
        # The centre of gravity is moved, so that a turn alone does not move the T.
        middle = rotation(TARGET[2]) @ CENTRE + TARGET[:2] + far * np.array([np.cos(direction), np.sin(direction)])
        return np.append(middle - rotation(angle) @ CENTRE, angle)

    @property
    def _agent(self) -> Floats:
        return np.array(self._sim.agent.position)

    @property
    def _pose(self) -> Floats:
        return np.array([*self._sim.block.position, self._sim.block.angle])

    def _observation(self) -> Observation:
        agent, points = self._agent, corners(self._pose)
        parts = [agent, self._sim.agent.velocity, (points - agent).ravel(), (corners(TARGET) - points).ravel()]
        return {"state": np.concatenate(parts).astype(np.float32) / np.float32(PLANE / 2)}

    def _covered(self, share: float) -> dict[str, Any]:
        """Return the information about a step after which this share of the target is covered."""
        return self._info(share > self._coverage) | {"coverage": share}


def build() -> Any:
    """Build gym-pusht's environment."""
    try:
        from gym_pusht.envs.pusht import PushTEnv as Original
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: PushT needs the extra: make install EXTRAS=dev,pusht") from error
    return Original(visualization_width=FRAME, visualization_height=FRAME)

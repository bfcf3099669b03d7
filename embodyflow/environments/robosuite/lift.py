"""robosuite's task Lift (Zhu et al., 2020, arXiv:2009.12293) behind the interface of embodied environments."""

from typing import Any, Literal

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from embodyflow.environments.goal_env import GoalEnv, Observation
from embodyflow.environments.robosuite import seeded
from embodyflow.environments.robosuite.lift_expert import Floats, Lifter

STATE_DIM = 11
FRAME, COLLISION_GEOMETRY = 256, 0
"""Side of a frame in pixels, and the group of geoms that are not rendered."""


class LiftEnv(GoalEnv):
    """A Panda arm lifts a cube from the table, from numbered places of the cube.

    The observation is a dict. ``state`` is float32 [11], in metres::

        0:3    gripper position
        3      distance between the fingers
        4:7    cube position
        7:10   cube - gripper
        10     height of the cube above its place on the table

    The action is float32 [4] in [-1, 1]: displacement (1 is 5 cm) and gripper (positive closes, negative opens). There
    are 20 actions per second. An episode is *terminated* when the cube's centre is 4 cm above the table, which is
    success, and *truncated* after ``max_steps``. The reward is robosuite's shaped one, from 0 to 1. ``info`` has
    ``success`` (bool), ``instruction`` (str) and ``goal`` (int).
    """

    tasks = ("lift",)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 Gymnasium's own
    instruction = "lift the cube from the table"

    def __init__(
        self,
        task: str = "lift",
        split: Literal["train", "demo", "eval"] = "train",
        max_steps: int = 60,
        render_mode: str | None = None,
        spread: float = 0.03,
    ) -> None:
        """Build the simulator.

        Args:
            task: Task, ``lift``.
            split: Split of the goals.
            max_steps: Number of steps after which an episode is truncated.
            render_mode: Render mode, ``None`` or ``"rgb_array"``, for :meth:`render`.
            spread: Largest distance of the cube from the middle of the table in each direction, in metres;
                robosuite's is 0.03.

        Raises:
            ValueError: An argument is not one of the allowed values.
            ModuleNotFoundError: The extra ``libero`` is not installed, which has robosuite.
        """
        super().__init__(task, split, max_steps, render_mode)
        if not 0 <= spread <= 0.2:
            raise ValueError(f"spread={spread}: must be from 0 to 0.2")
        self._spread = spread
        self._sim, self._place = _build()
        self._expert = Lifter()
        self._viewer: OffScreenViewer | None = None
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)
        self.observation_space: Space[Any] = Dict({"state": Box(-np.inf, np.inf, (STATE_DIM,), np.float32)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the episode of ``options["goal"]``, or of a goal drawn from the seed.

        Raises:
            ValueError: The split has no such goal.
        """
        self._begin(seed, options)
        self._expert, rng = Lifter(), self._draws_of(self._goal)
        x, y = rng.uniform(-self._spread, self._spread, 2)
        self._place.at, self._place.angle = (float(x), float(y)), float(rng.uniform(0, np.pi / 2))
        self._sim.reset()
        gripper = self._sim.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)  # robosuite keeps it over episodes
        self._table = float(self._positions()[1][2])
        return self._observation(), self._info(success=False)

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [4] in [-1, 1]."""
        _, reward, _, _ = self._sim.step(np.asarray(action, np.float64))
        success = bool(self._sim._check_success())
        return self._observation(), float(reward), success, self._is_cut(success), self._info(success)

    def expert_action(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action, float32 [4] in [-1, 1]."""
        return self._expert.act(*self._positions()).astype(np.float32)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, uint8 [256, 256, 3]."""
        if self.render_mode is None:
            return None
        if self._viewer is None:
            self._viewer = _viewer(self._sim.sim)
        self._viewer.make_context_current()  # another environment may have changed the context
        camera = mujoco.mj_name2id(self._viewer.model, mujoco.mjtObj.mjOBJ_CAMERA, "frontview")
        return np.asarray(self._viewer.render("rgb_array", camera_id=camera))

    def close(self) -> None:
        """Close the simulator, and the renderer if one was built."""
        if self._viewer is not None:
            self._viewer.close()
        self._sim.close()

    def _observation(self) -> Observation:
        hand, cube = self._positions()
        fingers = self._sim.sim.data.qpos[self._sim.robots[0]._ref_gripper_joint_pos_indexes]
        width, height = fingers[0] - fingers[1], cube[2] - self._table
        return {"state": np.concatenate([hand, [width], cube, cube - hand, [height]], dtype=np.float32)}

    def _positions(self) -> tuple[Floats, Floats]:
        """Return the positions of gripper and cube, without the sensors of robosuite, which have rates of their own."""
        data = self._sim.sim.data
        return data.site_xpos[self._sim.robots[0].eef_site_id], data.body_xpos[self._sim.cube_body_id]


class _Place:
    """A placement of robosuite that puts the cube where an episode wants it.

    Attributes:
        at: Offset of the cube from the middle of the table, in metres.
        angle: Turn of the cube about the vertical axis, in radians.
    """

    def __init__(self) -> None:
        self.at, self.angle = (0.0, 0.0), 0.0
        self._cube: Any = None

    def reset(self) -> None:
        """Forget the objects."""
        self._cube = None

    def add_objects(self, cube: Any) -> None:
        """Take the cube."""
        self._cube = cube

    def sample(self, *_: Any, **__: Any) -> dict[str, tuple[tuple[float, float, float], Floats, Any]]:
        """Return position, quaternion (w, x, y, z) and object by name."""
        height = 0.8 - self._cube.bottom_offset[2]  # the table is 0.8 m high
        turn = np.array([np.cos(self.angle / 2), 0, 0, np.sin(self.angle / 2)])
        return {self._cube.name: ((*self.at, height), turn, self._cube)}


def _viewer(sim: Any) -> OffScreenViewer:
    """Build a renderer of a simulation that robosuite wraps."""
    viewer = OffScreenViewer(sim.model._model, sim.data._data, FRAME, FRAME)
    viewer.vopt.geomgroup[COLLISION_GEOMETRY] = 0
    return viewer


def _build() -> tuple[Any, _Place]:
    """Build robosuite's environment without GL and without noise in the robot's first pose."""
    import robosuite

    place = _Place()
    with seeded(0):
        sim = robosuite.make(
            "Lift",
            robots="Panda",
            controller_configs=robosuite.load_controller_config(default_controller="OSC_POSITION"),
            initialization_noise=None,
            placement_initializer=place,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            use_object_obs=False,
            reward_shaping=True,
            control_freq=20,
            horizon=2**31,
            ignore_done=True,
            hard_reset=False,
        )
    return sim, place

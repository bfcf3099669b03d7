"""Tasks of robosuite (Zhu et al., 2020, arXiv:2009.12293) behind the interface of embodied environments."""

from typing import Any, Literal

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from embodyflow.environments.build_memory import free_build_memory
from embodyflow.environments.goal_env import GoalEnv, Observation
from embodyflow.environments.robosuite import seeded
from embodyflow.environments.robosuite.placement import Placement, draw_poses
from embodyflow.environments.robosuite.scenes import SCENES
from embodyflow.environments.robosuite.states import Floats

FRAME, COLLISION_GEOMETRY = 256, 0
"""Side of a frame in pixels, and the group of geoms that are not rendered."""


class RobosuiteEnv(GoalEnv):
    """A Panda arm lifts a cube, stacks one on another, or opens a door, from numbered places of cubes or door.

    The observation is a dict. ``state`` is float32 [11] for ``lift`` and [14] for ``stack``, in metres::

        0:3    gripper position
        3      distance between the fingers
        4:7    position of the cube, the red one of ``stack``
        7:10   cube - gripper
        10     height of the cube above its place on the table
        11:14  green cube - red cube

    For ``door`` it is float32 [18], in metres and radians::

        0:3    gripper position
        3      distance between the fingers
        4:7    position of the door's middle
        7:10   position of the handle's end
        10:13  door - gripper
        13:16  handle - gripper
        16     angle of the hinge, from 0 to 0.4
        17     angle of the handle, positive below the horizontal

    The door has robosuite's latch, so the handle must be turned first. The action is float32 [4] in [-1, 1]:
    displacement (1 is 5 cm) and gripper (positive closes, negative opens). There are 20 actions per second. An episode
    is *terminated* by success, which is robosuite's: the cube's centre is 4 cm above the table, the red cube is on the
    green one and not grasped, or the hinge has turned by more than 0.3. It is *truncated* after ``max_steps``. The
    reward is robosuite's shaped one, from 0 to 1. ``info`` has ``success`` (bool), ``instruction`` (str) and ``goal``
    (int).
    """

    tasks = tuple(SCENES)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 Gymnasium's own

    def __init__(
        self,
        task: str = "lift",
        split: Literal["train", "demo", "eval"] = "train",
        max_steps: int = 60,
        render_mode: str | None = None,
        spread: float | None = None,
    ) -> None:
        """Build the simulator.

        Args:
            task: Task, ``lift``, ``stack`` or ``door``.
            split: Split of the goals.
            max_steps: Number of steps after which an episode is truncated.
            render_mode: Render mode, ``None`` or ``"rgb_array"``, for :meth:`render`.
            spread: Largest distance of a cube or the door from the middle of its places in each direction, in metres,
                at most 0.2, and 0.05 for the door; ``None`` is robosuite's own, 0.03 for ``lift``, 0.08 for ``stack``
                and 0.01 for ``door``.

        Raises:
            ValueError: An argument is not one of the allowed values.
            ModuleNotFoundError: The extra ``libero`` is not installed, which has robosuite.
        """
        super().__init__(task, split, max_steps, render_mode)
        self._scene = SCENES[task]
        self.instruction = self._scene.instruction
        places = self._scene.places
        self._spread = places.spread if spread is None else spread
        low, high = places.spreads
        if not low <= self._spread <= high:
            raise ValueError(f"spread={spread}: must be from {low:g} to {high:g} with task={task}")
        self._placement = Placement(places.middle)
        self._sim = _build(self._scene.name, self._placement)
        self._objects = self._scene.states(self._sim)
        self._expert = self._scene.expert()
        self._viewer: OffScreenViewer | None = None
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)
        state = Box(-np.inf, np.inf, (self._scene.state_dim,), np.float32)
        self.observation_space: Space[Any] = Dict({"state": state})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the episode of ``options["goal"]``, or of a goal drawn from the seed.

        Raises:
            ValueError: The split has no such goal.
        """
        self._begin(seed, options)
        free_build_memory()
        self._expert = self._scene.expert()
        places = self._scene.places
        rng = self._draws_of(self._goal)
        self._placement.poses = draw_poses(rng, places.number, self._spread, places.turns)
        self._sim.reset()
        gripper = self._sim.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)  # robosuite keeps it over episodes
        self._objects.begin()
        return self._observation(), self._info(success=False)

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [4] in [-1, 1]."""
        _, reward, _, _ = self._sim.step(np.asarray(action, np.float64))
        success = bool(self._sim._check_success())
        return self._observation(), float(reward), success, self._is_cut(success), self._info(success)

    def expert_action(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action, float32 [4] in [-1, 1]."""
        return self._expert.act(self._state()).astype(np.float32)

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
        return {"state": self._state().astype(np.float32)}

    def _state(self) -> Floats:
        robot, data = self._sim.robots[0], self._sim.sim.data
        hand = data.site_xpos[robot.eef_site_id]
        fingers = data.qpos[robot._ref_gripper_joint_pos_indexes]
        return np.concatenate([hand, fingers[:1] - fingers[1:], self._objects.read(hand)])


def _viewer(sim: Any) -> OffScreenViewer:
    """Build a renderer of a simulation that robosuite wraps."""
    viewer = OffScreenViewer(sim.model._model, sim.data._data, FRAME, FRAME)
    viewer.vopt.geomgroup[COLLISION_GEOMETRY] = 0
    return viewer


def _build(name: str, placement: Placement) -> Any:
    """Build robosuite's environment without GL and without noise in the robot's first pose."""
    import robosuite

    with seeded(0):
        return robosuite.make(
            name,
            robots="Panda",
            controller_configs=robosuite.load_controller_config(default_controller="OSC_POSITION"),
            initialization_noise=None,
            placement_initializer=placement,
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

"""LIBERO's tasks behind the interface of embodied environments."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from embodyflow.environments.build_memory import free_build_memory
from embodyflow.environments.choices import check_choice
from embodyflow.environments.goal_env import GoalEnv, Observation
from embodyflow.environments.libero import suites
from embodyflow.environments.libero.control import NUM_SUBSTEPS, Arm, ArmState
from embodyflow.environments.libero.expert import PickAndPlace
from embodyflow.environments.libero.scene import scene

MAX_OBJECTS = 4
"""Largest number of objects of interest in a task."""
OBJECTS_DIM = 4 + 6 * MAX_OBJECTS + 3
PROPRIO_DIM = 8
CAMERAS = MappingProxyType({"image": "agentview", "wrist_image": "robot0_eye_in_hand"})
SETTLE = np.array([0, 0, 0, 0, 0, 0, -1], np.float64)
FULL_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class LiberoEnv(GoalEnv):
    """One LIBERO task whose episodes start at its 50 recorded initial states.

    The observation is a dict. With ``observe="objects"``, ``state`` is float32 [31], in metres::

        0:3    gripper position
        3      distance between the fingers
        4:28   up to four objects of interest, each position (3) and position - gripper (3); zero if there are fewer
        28:31  second object - first, the way to the target

    With ``observe="proprio"`` it is float32 [8], the input of vision-language-action policies for LIBERO beside images:
    gripper position (3), axis-angle (3) and finger positions (2). ``cameras`` adds ``image`` (``agentview``) and
    ``wrist_image`` (``robot0_eye_in_hand``), uint8 [image_size, image_size, 3]. These are robosuite's raw frames turned
    by 180°, as published policies expect them: upright, with left and right exchanged.

    The action is float32 [7] in [-1, 1]: displacement (1 is 5 cm), axis-angle turn (1 is 0.5 rad) and gripper (positive
    closes, negative opens). Without ``rotation`` it is float32 [4], without the turn. There are 20 actions per second.
    An episode is *terminated* by success and *truncated* after ``max_steps``. The reward is 1 in the step that
    succeeds, else 0. ``info`` has ``success`` (bool), ``instruction`` (str), ``goal`` (int) and ``stand_in_assets``
    (bool). The last is true if textures are placeholders; then results from images are not comparable with the
    published benchmark.

    A reset loads the recorded initial state. The settling that follows is simulated once per state and cached. Fixtures
    are in the positions that LIBERO draws with seed 0.

    Attributes:
        tasks: Names of the tasks, ``suite/number``. Tasks of LIBERO-90 need the assets of its scenes.
        num_goals: Number of initial states by split. Of LIBERO's 50, 20 are for training, 10 for demonstrations and 20
            for evaluation.
        defer_images: True to omit images from the observation of :meth:`step`; :meth:`observe` then draws them.
    """

    tasks = suites.TASKS
    num_goals: Mapping[str, int] = MappingProxyType({"train": 20, "demo": 10, "eval": 20})
    first_state: Mapping[str, int] = MappingProxyType({"train": 0, "demo": 20, "eval": 30})
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 Gymnasium's own

    def __init__(
        self,
        task: str = "libero_object/0",
        split: Literal["train", "demo", "eval"] = "train",
        max_steps: int = 280,
        *,
        observe: Literal["objects", "proprio"] = "objects",
        rotation: bool = True,
        cameras: Sequence[str] = (),
        image_size: int = 128,
        num_settle_steps: int = 10,
        controller_period: int = 1,
        render_mode: str | None = None,
    ) -> None:
        """Build the task's simulator, or share the one of another environment of the task in this process.

        Args:
            task: Task, one of :attr:`tasks`.
            split: Split of the initial states.
            max_steps: Number of steps after which an episode is truncated.
            observe: Content of ``state``.
            rotation: True if actions turn the gripper.
            cameras: Images in the observation, ``image`` and ``wrist_image``.
            image_size: Side of the images in pixels.
            num_settle_steps: Number of actions before the first observation, which only open the gripper.
            controller_period: Number of physics steps per computation of the arm's torques, a divisor of 25. 1 is
                robosuite's; 5 is cheaper and moves a little differently (``benchmarks/robots/libero_steps.py``).
            render_mode: Render mode, ``None`` or ``"rgb_array"``, for :meth:`render`.

        Raises:
            ValueError: An argument is not one of the allowed values.
            ModuleNotFoundError: The extra ``libero`` is not installed.
            FileNotFoundError: LIBERO's assets are missing.
        """
        super().__init__(task, split, max_steps, render_mode)
        check_choice("observe", observe, ("objects", "proprio"))
        check_choice("controller_period", controller_period, [n for n in range(1, 26) if NUM_SUBSTEPS % n == 0])
        for camera in cameras:
            check_choice("cameras", camera, CAMERAS)
        self._observe, self._rotation = observe, rotation
        self._cameras, self._image_size, self._num_settle_steps = tuple(cameras), image_size, num_settle_steps
        self.defer_images = False
        self._scene = scene(task)
        self.instruction = self._scene.instruction
        self._wrapped = self._scene.new_data()
        self._data: mujoco.MjData = self._wrapped._data
        self._arm = Arm(self._scene.robot, self._scene.model, controller_period)
        self._initial_states = suites.initial_states(task)
        self._settled: dict[int, tuple[NDArray[np.float64], ArmState]] = {}
        self._has_stand_ins = bool(suites.stand_in_textures())
        self._arm_state = self._arm.at_rest(self._data)
        self._expert: PickAndPlace | None = None
        self.action_space = Box(-1.0, 1.0, (7 if rotation else 4,), np.float32)
        size = OBJECTS_DIM if observe == "objects" else PROPRIO_DIM
        spaces: dict[str, gym.Space[Any]] = {"state": Box(-np.inf, np.inf, (size,), np.float32)}
        spaces |= {name: Box(0, 255, (image_size, image_size, 3), np.uint8) for name in self._cameras}
        self.observation_space: gym.Space[Any] = Dict(spaces)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start at initial state ``options["goal"]`` of the split, or at one drawn from the seed.

        Raises:
            ValueError: The split has no such initial state.
        """
        self._begin(seed, options)
        free_build_memory()
        self._expert = None
        self._scene.use(self._wrapped)
        if self._goal not in self._settled:
            self._settle(self._goal)
        state, arm_state = self._settled[self._goal]
        mujoco.mj_resetData(self._scene.model, self._data)
        mujoco.mj_setState(self._scene.model, self._data, state, FULL_STATE)
        mujoco.mj_forward(self._scene.model, self._data)
        mujoco.mj_setState(self._scene.model, self._data, state, FULL_STATE)  # restores the solver's warm start
        self._arm_state = ArmState(arm_state.goal_rotation.copy(), arm_state.fingers.copy())
        return self.observe(), self._info(success=False)

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [7], or [4] without rotation, in [-1, 1]."""
        full = np.zeros(7)
        full[[0, 1, 2, 3, 4, 5, 6] if self._rotation else [0, 1, 2, 6]] = action
        self._scene.use(self._wrapped)
        self._arm.execute(self._data, self._arm_state, full)
        success = self._scene.succeeded()
        observation = {"state": self._state()} if self.defer_images else self.observe()
        return observation, float(success), success, self._is_cut(success), self._info(success)

    def observe(self) -> Observation:
        """Return the current observation, including images."""
        observation: Observation = {"state": self._state()}
        for name in self._cameras:
            frame = self._frame(CAMERAS[name], self._image_size)
            observation[name] = np.ascontiguousarray(frame[:, ::-1])
        return observation

    def expert_action(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action, for tasks of LIBERO-Object.

        Raises:
            ValueError: The task belongs to another suite.
        """
        if not self.task.startswith("libero_object/"):
            raise ValueError(f"task={self.task}: only libero_object has a scripted expert")
        self._scene.use(self._wrapped)
        if self._expert is None:
            self._expert = PickAndPlace()
        thing, basket = (self._scene.object_position(name) for name in self._scene.objects[:2])
        action = self._expert.act(self._arm.position(self._data), thing, basket)
        return (action if self._rotation else action[[0, 1, 2, 6]]).astype(np.float32)

    def render(self) -> Any:
        """Return the current frame of the agent's camera, upright, uint8 [256, 256, 3]."""
        return self._frame(CAMERAS["image"], 256)

    def _settle(self, goal: int) -> None:
        """Simulate from an initial state until the objects rest, and cache the resulting state."""
        model, data = self._scene.model, self._data
        flat = self._initial_states[self.first_state[self.split] + goal]
        mujoco.mj_resetData(model, data)
        data.time, data.qpos[:], data.qvel[:] = flat[0], flat[1 : 1 + model.nq], flat[1 + model.nq :]
        mujoco.mj_forward(model, data)
        arm_state = self._arm.at_rest(data)
        for _ in range(self._num_settle_steps):
            self._arm.execute(data, arm_state, SETTLE)
        state = np.empty(mujoco.mj_stateSize(model, FULL_STATE))
        mujoco.mj_getState(model, data, state, FULL_STATE)
        self._settled[goal] = state, arm_state

    def _state(self) -> NDArray[np.float32]:
        self._scene.use(self._wrapped)
        gripper, fingers = self._arm.position(self._data), self._data.qpos[self._arm.finger_joints]
        if self._observe == "proprio":
            return np.concatenate([gripper, self._arm.turn(self._data), fingers], dtype=np.float32)
        state = np.zeros(OBJECTS_DIM, np.float32)
        state[:3], state[3] = gripper, fingers[0] - fingers[1]
        positions = [self._scene.object_position(name) for name in self._scene.objects]
        for k, position in enumerate(positions):
            state[4 + 6 * k : 7 + 6 * k], state[7 + 6 * k : 10 + 6 * k] = position, position - gripper
        if len(positions) > 1:
            state[-3:] = positions[1] - positions[0]
        return state

    def _frame(self, camera: str, size: int) -> NDArray[np.uint8]:
        self._scene.use(self._wrapped)
        self._scene.update_visuals()
        return self._scene.draw(self._data, camera, size)

    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"stand_in_assets": self._has_stand_ins}

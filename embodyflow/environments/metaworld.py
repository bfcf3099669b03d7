"""Meta-World's manipulation tasks with numbered goals and scripted experts.

Meta-World 3 (Yu et al., 2019, arXiv:1910.10897) derives a task's initial state from one random vector. Here that
vector, called a *goal*, is a function of ``(task, split, index)``. The splits ``train``, ``demo`` and ``eval`` are
disjoint, so training, demonstrations and evaluation use different goals.
"""

import warnings
from typing import Any, Literal

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.spaces import Box, Dict
from metaworld.env_dict import ENV_CLS_MAP
from metaworld.policies import ENV_POLICY_MAP
from numpy.typing import NDArray

from embodyflow.environments.build_memory import free_build_memory
from embodyflow.environments.choices import check_choice
from embodyflow.environments.goal_env import GoalEnv
from embodyflow.environments.metaworld_step import FastStep

INSTRUCTIONS: dict[str, str] = {
    "assembly-v3": "put the ring on the peg",
    "basketball-v3": "dunk the basketball into the hoop",
    "bin-picking-v3": "move the cube to the other bin",
    "box-close-v3": "put the lid on the box",
    "button-press-topdown-v3": "press the button from the top",
    "button-press-topdown-wall-v3": "press the button behind the wall from the top",
    "button-press-v3": "press the button",
    "button-press-wall-v3": "press the button behind the wall",
    "coffee-button-v3": "push the button of the coffee machine",
    "coffee-pull-v3": "pull the mug away from the coffee machine",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial",
    "disassemble-v3": "take the ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door",
    "drawer-close-v3": "close the drawer",
    "drawer-open-v3": "open the drawer",
    "faucet-close-v3": "close the faucet",
    "faucet-open-v3": "open the faucet",
    "hammer-v3": "hammer the nail into the wall",
    "hand-insert-v3": "insert the hand into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "insert the peg into the hole from the side",
    "peg-unplug-side-v3": "unplug the peg from the side",
    "pick-out-of-hole-v3": "pick the puck out of the hole",
    "pick-place-v3": "pick up the puck and place it at the goal",
    "pick-place-wall-v3": "pick up the puck and place it at the goal behind the wall",
    "plate-slide-back-side-v3": "slide the plate back out of the cabinet from the side",
    "plate-slide-back-v3": "slide the plate back out of the cabinet",
    "plate-slide-side-v3": "slide the plate into the cabinet from the side",
    "plate-slide-v3": "slide the plate into the cabinet",
    "push-back-v3": "push the puck back to the goal",
    "push-v3": "push the puck to the goal",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-v3": "reach the goal position",
    "reach-wall-v3": "reach the goal position behind the wall",
    "shelf-place-v3": "place the puck on the shelf",
    "soccer-v3": "kick the ball into the goal",
    "stick-pull-v3": "pull the box with the stick",
    "stick-push-v3": "push the box with the stick",
    "sweep-into-v3": "sweep the puck into the hole",
    "sweep-v3": "sweep the puck off the table",
    "window-close-v3": "close the window",
    "window-open-v3": "open the window",
}

STATE_DIM = 30
CAMERAS = ("corner", "corner2", "corner3", "topview", "behindGripper", "gripperPOV")


class MetaWorldEnv(GoalEnv):
    """One Meta-World task whose episodes start at numbered goals.

    The observation is a dict. ``state`` is float32 [30], in metres except for the gripper opening and quaternions::

        0:3    hand position
        3      gripper opening, 0 closed to 1 open
        4:18   two objects, each position (3) and quaternion (4); zero if the task has only one
        18:21  goal position
        21:24  goal - hand          relative features, included because a network that normalises
        24:27  first object - hand  absolute positions loses centimetres
        27:30  goal - first object

    With ``image_size``, ``image`` is uint8 [image_size, image_size, 3]. The action is float32 [4] in [-1, 1]: the
    displacement of the hand (1 is 1 cm per step) and the closing force of the gripper. An episode is *terminated* by
    success and *truncated* after ``max_steps``. The reward is Meta-World's own dense reward, from 0 to 10. ``info`` has
    ``success`` (bool), ``instruction`` (str) and ``goal`` (int).

    The same goal and actions give bit-identical trajectories in any process, regardless of earlier episodes.

    Attributes:
        defer_images: True to omit the image from the observation of :meth:`step`; :meth:`observe` then draws it.
    """

    tasks = tuple(INSTRUCTIONS)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012 Gymnasium's own

    def __init__(
        self,
        task: str = "reach-v3",
        split: Literal["train", "demo", "eval"] = "train",
        max_steps: int = 500,
        render_mode: str | None = None,
        image_size: int | None = None,
        camera: str = "corner2",
    ) -> None:
        """Build the simulator; the first frame builds a renderer.

        Args:
            task: Task, a key of :data:`INSTRUCTIONS`.
            split: Split of the goals.
            max_steps: Number of steps after which an episode is truncated.
            render_mode: Render mode, ``None`` or ``"rgb_array"``, for :meth:`render`.
            image_size: Side of ``image`` in pixels; ``None`` omits it from the observation.
            camera: Camera, one of :data:`CAMERAS`.

        Raises:
            ValueError: An argument is not one of the allowed values.
        """
        super().__init__(task, split, max_steps, render_mode)
        check_choice("camera", camera, CAMERAS)
        self.instruction = INSTRUCTIONS[task]
        self.image_size, self.defer_images = image_size, False
        self._sim = _build_simulator(task, camera, image_size or 256)
        self._expert = ENV_POLICY_MAP[task]()
        self._goals: dict[int, NDArray[np.float64]] = {}
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)
        spaces: dict[str, Any] = {"state": Box(-np.inf, np.inf, (STATE_DIM,), np.float32)}
        if image_size is not None:
            spaces["image"] = Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.observation_space: gym.Space[Any] = Dict(spaces)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Start the episode of ``options["goal"]``, or of a goal drawn from the seed.

        Raises:
            ValueError: The split has no such goal.
        """
        self._begin(seed, options)
        free_build_memory()
        self._raw = self._sim.reset_to(self._goal_vector(self._goal))
        return self.observe(), self._info(success=False)

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [4] in [-1, 1]."""
        self._raw, reward, _, _, sim_info = self._sim.step(action)
        success = bool(sim_info["success"])
        observation = {"state": self._state()} if self.defer_images else self.observe()
        return observation, float(reward), success, self._is_cut(success), self._info(success)

    def observe(self) -> dict[str, NDArray[Any]]:
        """Return the current observation, including the image."""
        state = self._state()
        return {"state": state} if self.image_size is None else {"state": state, "image": self.render()}

    def expert_action(self) -> NDArray[np.float32]:
        """Return the next action of Meta-World's scripted expert, float32 [4], clipped to [-1, 1]."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Constant(s) may be too high" at most steps, which the clip handles
            action = self._expert.get_action(self._raw)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def _goal_vector(self, goal: int) -> NDArray[np.float64]:
        """Return the goal's random vector, float64 [3] or [6]; drawing it changes the simulator's state."""
        if goal not in self._goals:
            self._goals[goal] = self._sim.draw_vector(self._draws_of(goal))
        return self._goals[goal]

    def render(self) -> Any:
        """Return the current frame, uint8 [H, W, 3]."""
        renderer = self._sim.mujoco_renderer
        renderer._get_viewer("rgb_array").make_context_current()  # another environment may have changed the context
        frame = renderer.render("rgb_array")
        upside_down = self._sim.camera_name.startswith("corner")  # Meta-World mounts these cameras upside down
        return np.ascontiguousarray(frame[::-1, ::-1] if upside_down else frame)

    def close(self) -> None:
        """Free the renderer, if one was built."""
        self._sim.close()

    def _state(self) -> NDArray[np.float32]:
        raw = self._raw  # [39]: current frame (18), previous frame (18), goal (3)
        hand, thing, goal = raw[:3], raw[4:7], raw[36:39]
        return np.concatenate([raw[:18], goal, goal - hand, thing - hand, goal - thing], dtype=np.float32)


class _RecordedResets:
    """Mixin for a Meta-World task that resets to a given vector and caches the settled hand.

    Meta-World's ``reset`` calls ``reset_model`` twice, and each call simulates 250 steps until the hand settles. The
    first call matters only for its changes to the model, such as the position of a drawer or a window. The second
    settles to a state that depends on the model alone. So here the first call skips the simulation and the second
    caches its result. The tests compare every task with Meta-World's own reset.
    """

    model: mujoco.MjModel
    data: mujoco.MjData
    _settled: tuple[bytes, mujoco.MjData] | None = None
    _settle = True

    def reset_to(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Start at a vector from :meth:`draw_vector`; return Meta-World's observation, float64 [39]."""
        self._freeze_rand_vec, self._last_rand_vec = True, vector
        self._place(settle=False)
        raw = self._place(settle=True)
        self._prev_obs = raw[:18].copy()
        return np.concatenate([raw[:18], raw[:18], raw[36:]])

    def draw_vector(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw a random vector that satisfies the constraints of the task."""
        self._freeze_rand_vec, self.seeded_rand_vec, self.np_random = False, True, rng
        self._place(settle=False)
        vector: NDArray[np.float64] = self._last_rand_vec
        return vector.copy()

    def _place(self, settle: bool) -> NDArray[np.float64]:
        self.curr_path_length, self._settle = 0, settle
        mujoco.mj_resetData(self.model, self.data)
        raw: NDArray[np.float64] = self.reset_model()  # type: ignore[attr-defined]
        return raw

    def _reset_hand(self, steps: int = 50) -> None:
        settle = super()._reset_hand  # type: ignore[misc]
        if not self._settle:
            mujoco.mj_forward(self.model, self.data)  # the poses that reset_model reads
            return settle(steps=0)
        key = self.model.body_pos.tobytes()
        if self._settled is not None and self._settled[0] == key:
            mujoco.mj_copyData(self.data, self.model, self._settled[1])
            return settle(steps=0)  # reads the settled state
        settle(steps=steps)
        saved = mujoco.MjData(self.model)
        mujoco.mj_copyData(saved, self.model, self.data)
        self._settled = (key, saved)


def _build_simulator(task: str, camera: str, image_size: int) -> Any:
    base = ENV_CLS_MAP[task]
    simulator = type(base.__name__, (_RecordedResets, FastStep, base), {})
    sim = simulator(camera_name=camera, width=image_size, height=image_size)
    sim._partially_observable = False  # include the goal in the observation
    sim.__dict__.pop("sawyer_observation_space", None)  # the cached space hides the goal
    sim._set_task_called = True
    sim.max_path_length = np.iinfo(np.int64).max  # MetaWorldEnv truncates episodes itself
    sim.model.vis.quality.shadowsize = sim.model.vis.quality.offsamples = 0  # both are expensive without a GPU
    sim.prepare()
    return sim

"""ALOHA's transfer of a cube behind the interface of embodied environments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from embodyflow.environments.aloha.arm import Floats, joints
from embodyflow.environments.aloha.expert import STEP, WAIT, Hand, hand_over
from embodyflow.environments.goal_env import GoalEnv, Observation

STATE_DIM = 24
TIP = np.array([0.135, 0.0, 0.0])
"""Point between the fingers in the frame of a hand, in metres."""


@dataclass(frozen=True)
class Arm:
    """An arm of the scene.

    Attributes:
        name: Its name in the scene.
        base: Its base, in metres.
        forwards: 1 if it faces forwards along x, -1 if backwards.
        pitch: Angle of the hand below the horizontal, in radians.
        roll: Turn of the hand about its own axis, in radians.
        undoes_waist: Whether the hand turns about its own axis against the waist, so that its fingers close along y, as
            the cube lies.
        start: First place of the point between the fingers, in metres.
        finger: Place of the first finger among the positions of the joints; the second one's follows.
    """

    name: str
    base: Floats
    forwards: float
    pitch: float
    roll: float
    undoes_waist: bool
    start: Floats
    finger: int

    def positions(self, goal: Floats, finger: float) -> list[float]:
        """Return the positions of the arm's eight actuators, given a place of the point between the fingers."""
        way = (goal - self.base) * np.array([self.forwards, self.forwards, 1.0])
        waist, shoulder, elbow, wrist = joints(way, self.pitch)
        turn = np.arctan(np.tan(waist) / np.sin(self.pitch)) if self.undoes_waist else 0.0
        return [waist, shoulder, elbow, 0.0, wrist, self.roll + turn, finger, -finger]


ARMS = (
    Arm(
        name="vx300s_left",
        base=np.array([-0.469, 0.5, 0.0]),
        forwards=1.0,
        pitch=0.0,
        roll=np.pi / 2,  # the fingers are above each other
        undoes_waist=False,
        start=WAIT + np.array([-0.1, 0.0, 0.05]),
        finger=6,
    ),
    Arm(
        name="vx300s_right",
        base=np.array([0.469, 0.5, 0.0]),
        forwards=-1.0,
        pitch=np.pi / 3,
        roll=0.0,
        undoes_waist=True,
        start=np.array([0.2, 0.5, 0.2]),
        finger=14,
    ),
)
"""The left and the right arm."""
CLOSED, OPEN = 0.021, 0.057
"""Positions of a finger, in metres."""
LEASH = 0.06
"""Largest distance of a hand's goal from the hand in each direction, in metres."""
REACH = np.array([[-0.3, 0.3, 0.015], [0.3, 0.7, 0.4]])
"""Bounds of a hand's goal, in metres."""
PARTS, SUBSTEPS = 5, 10
"""An action moves the actuators' positions in parts; steps of the simulator for each, 2 ms long."""
HEIGHT = 0.02
"""Height of the cube's centre on the table, in metres: half of its side."""
FRAME = 256


class AlohaEnv(GoalEnv):
    """The right arm grasps a cube, lifts it and hands it to the left arm, from numbered places of the cube.

    Scene, actuators and success are gym-aloha's, which moves the joints. Here an action moves the points between the
    fingers: each arm has a goal, inverse kinematics gives the joints that reach it, and the hands keep their pitch. The
    observation is a dict. ``state`` is float32 [24], in metres; ``cube - hand`` is that of the point between the
    fingers::

        0:3    left hand
        3:6    goal of the left hand - left hand
        6      distance between the joints of the left hand's fingers
        7:10   right hand
        10:13  goal of the right hand - right hand
        13     distance between the joints of the right hand's fingers
        14:17  cube
        17:20  cube - left hand
        20:23  cube - right hand
        23     height of the cube above the table

    The action is float32 [8] in [-1, 1]: displacement of the left hand's goal (1 is 3 cm) and its gripper (positive
    closes, negative opens), then those of the right hand. There are 10 actions per second. An episode is *terminated*
    by success: a finger of the left hand touches the cube, which is not on the table. It is *truncated* after
    ``max_steps``. The reward is gym-aloha's divided by four: 0.25 while the right hand touches the cube, 0.5 while the
    cube is off the table too, 0.75 while the left hand touches it, 1 for success. ``info`` has ``success`` (bool),
    ``instruction`` (str) and ``goal`` (int).
    """

    tasks = ("transfer_cube",)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 Gymnasium's own
    instruction = "hand the cube to the left arm"

    def __init__(
        self,
        task: str = "transfer_cube",
        split: Literal["train", "demo", "eval"] = "train",
        max_steps: int = 60,
        render_mode: str | None = None,
        spread: float = 0.1,
    ) -> None:
        """Build the simulator.

        Args:
            task: Task, ``transfer_cube``.
            split: Split of the goals.
            max_steps: Number of steps after which an episode is truncated.
            render_mode: Render mode, ``None`` or ``"rgb_array"``, for :meth:`render`.
            spread: Largest distance of the cube from the middle of its area in each direction, in metres; gym-aloha's
                is 0.1.

        Raises:
            ValueError: An argument is not one of the allowed values.
            ModuleNotFoundError: The extra ``envs`` is not installed, which has gym-aloha.
        """
        super().__init__(task, split, max_steps, render_mode)
        if not 0 <= spread <= 0.1:
            raise ValueError(f"spread={spread}: must be from 0 to 0.1")
        self._spread = spread
        self._model = mujoco.MjModel.from_xml_path(str(_assets() / "bimanual_viperx_transfer_cube.xml"))
        self._data = mujoco.MjData(self._model)
        self._bodies = [self._model.body(f"{arm.name}/gripper_link").id for arm in ARMS]
        self._goals = [arm.start for arm in ARMS]
        self._viewer: OffScreenViewer | None = None
        self.action_space = Box(-1.0, 1.0, (8,), np.float32)
        self.observation_space: Space[Any] = Dict({"state": Box(-np.inf, np.inf, (STATE_DIM,), np.float32)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the episode of ``options["goal"]``, or of a goal drawn from the seed.

        Raises:
            ValueError: The split has no such goal.
        """
        self._begin(seed, options)
        self._goals = [arm.start for arm in ARMS]
        mujoco.mj_resetData(self._model, self._data)
        self._data.ctrl[:] = self._targets([OPEN, OPEN])
        self._data.qpos[:16] = self._data.ctrl
        place = np.array([0.1, 0.5]) + self._draws_of(self._goal).uniform(-self._spread, self._spread, 2)
        self._data.qpos[16:] = [*place, HEIGHT, 1.0, 0.0, 0.0, 0.0]
        mujoco.mj_forward(self._model, self._data)
        return self._observation(), self._info(success=False)

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [8] in [-1, 1]."""
        moves = np.clip(np.asarray(action, np.float64), -1.0, 1.0).reshape(2, 4)
        for index, (hand, move) in enumerate(zip(self._hands(), moves, strict=True)):
            goal = np.clip(hand.goal + STEP * move[:3], hand.place - LEASH, hand.place + LEASH)
            self._goals[index] = np.clip(goal, *REACH)
        begun, targets = self._data.ctrl.copy(), self._targets(CLOSED + (OPEN - CLOSED) * (1 - moves[:, 3]) / 2)
        for part in range(1, PARTS + 1):
            self._data.ctrl[:] = begun + (targets - begun) * part / PARTS
            mujoco.mj_step(self._model, self._data, SUBSTEPS)
        reward = self._stage() / 4
        success = reward == 1.0
        return self._observation(), reward, success, self._is_cut(success), self._info(success)

    def expert_action(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action, float32 [8] in [-1, 1]."""
        left, right = self._hands()
        return hand_over(left, right, self._cube()).astype(np.float32)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, uint8 [256, 256, 3]."""
        if self.render_mode is None:
            return None
        if self._viewer is None:
            self._viewer = OffScreenViewer(self._model, self._data, FRAME, FRAME)
        self._viewer.make_context_current()  # another environment may have changed the context
        return np.asarray(self._viewer.render("rgb_array", camera_id=self._model.camera("angle").id))

    def close(self) -> None:
        """Close the renderer, if one was built."""
        if self._viewer is not None:
            self._viewer.close()

    def _targets(self, fingers: Sequence[float] | Floats) -> Floats:
        """Return the positions of all actuators for the hands' goals, float64 [16]."""
        each = zip(ARMS, self._goals, fingers, strict=True)
        return np.concatenate([arm.positions(goal, finger) for arm, goal, finger in each])

    def _hands(self) -> list[Hand]:
        """Return the left and the right hand."""
        found = []
        for arm, goal, body in zip(ARMS, self._goals, self._bodies, strict=True):
            place = self._data.xpos[body] + self._data.xmat[body].reshape(3, 3) @ TIP
            width = float(self._data.qpos[arm.finger] - self._data.qpos[arm.finger + 1])
            found.append(Hand(place, goal, width))
        return found

    def _cube(self) -> Floats:
        place: Floats = self._data.qpos[16:19].copy()
        return place

    def _stage(self) -> int:
        """Return gym-aloha's reward, from 0 to 4."""
        names = [
            {self._model.geom(number).name for number in self._data.contact.geom[each]}
            for each in range(self._data.ncon)
        ]
        touching = {name for pair in names if "red_box" in pair for name in pair}
        lifted = "table" not in touching
        if "vx300s_left/10_left_gripper_finger" in touching:
            return 4 if lifted else 3
        if "vx300s_right/10_right_gripper_finger" in touching:
            return 2 if lifted else 1
        return 0

    def _observation(self) -> Observation:
        cube, hands = self._cube(), self._hands()
        parts = [part for hand in hands for part in (hand.place, hand.goal - hand.place, [hand.width])]
        parts += [cube, *(cube - hand.place for hand in hands), cube[2:] - HEIGHT]
        return {"state": np.concatenate(parts, dtype=np.float32)}


def _assets() -> Path:
    """Return the folder of gym-aloha's scenes."""
    try:
        from gym_aloha.constants import ASSETS_DIR
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: ALOHA needs the extra: make install EXTRAS=dev,envs") from error
    return Path(ASSETS_DIR)

"""An environment from a MuJoCo XML file, for tasks that bring one body or site near another, without code."""

import functools
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from gymnasium.spaces import Box
from numpy.typing import NDArray

from embodyflow.environments.build_memory import free_build_memory

Floats = NDArray[np.float64]


class MujocoXMLEnv(gym.Env[Floats, NDArray[np.float32]]):
    """A scene whose actuators are the action and whose joints and sensors are the observation.

    The observation is float64: ``qpos``, ``qvel``, all sensors, and for each pair of ``near`` the vector from the first
    body or site to the second, in metres. The action is the control of the actuators, within their ranges. The reward
    of a step is minus the sum of the pairs' distances in metres. ``info["success"]`` is true if each distance is within
    its tolerance. Without pairs the reward is 0 and no step succeeds. Episodes never terminate.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 Gymnasium's own

    def __init__(
        self,
        xml: str,
        frame_skip: int = 10,
        near: Sequence[tuple[str, str, float]] = (),
        spread: Mapping[str, float] | None = None,
        camera: str | None = None,
        width: int = 256,
        height: int = 256,
        render_mode: str | None = None,
    ) -> None:
        """Load the scene.

        Args:
            xml: Path of the MJCF or URDF file.
            frame_skip: Number of physics steps per action.
            near: Pairs that success brings together, as (body or site, body or site, tolerance in metres).
            spread: Half-widths by joint of the uniform noise that a reset adds to the joint's first coordinate. The
                noise is centred on the scene's first keyframe, or its default state without keyframes.
            camera: Name of the camera; ``None`` means MuJoCo's free camera.
            width: Width of a frame in pixels.
            height: Height of a frame in pixels.
            render_mode: Render mode, ``None`` or ``"rgb_array"``.

        Raises:
            ValueError: The scene cannot be loaded or lacks an element that an argument names, or an argument has the
                wrong type.
        """
        if not Path(xml).is_file():
            raise ValueError(f"xml={xml}: must be an existing file")
        _check(frame_skip, near, spread or {})
        self.model = mujoco.MjModel.from_xml_path(xml)
        self.data = mujoco.MjData(self.model)
        if self.model.nu == 0:
            raise ValueError(f"xml={xml}: has no actuators, so it has no actions; add an actuator")
        self.render_mode, self._frame_skip, self._camera = render_mode, frame_skip, self._camera_id(camera)
        self._size = (width, height)
        self._viewer: Any = None
        self._pairs = [(self._place(first), self._place(second), float(tol)) for first, second, tol in near]
        self._spread = {self._joint(name): half_width for name, half_width in (spread or {}).items()}
        self.metadata = {**self.metadata, "render_fps": round(1 / (self.model.opt.timestep * frame_skip))}
        limited = self.model.actuator_ctrllimited.astype(bool)[:, None]
        bounds = np.where(limited, self.model.actuator_ctrlrange, [-1.0, 1.0]).astype(np.float32)
        self.action_space = Box(bounds[:, 0], bounds[:, 1], dtype=np.float32)
        size = self.model.nq + self.model.nv + self.model.nsensordata + 3 * len(self._pairs)
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start at the scene's first keyframe, or its default state, with the noise of ``spread``."""
        super().reset(seed=seed)
        free_build_memory()
        if self.model.nkey:
            mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        else:
            mujoco.mj_resetData(self.model, self.data)
        for address, half_width in self._spread.items():
            self.data.qpos[address] += self.np_random.uniform(-half_width, half_width)
        mujoco.mj_forward(self.model, self.data)
        return self._observation(), {"success": self._success()}

    def step(self, action: NDArray[np.float32]) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Apply a control, float32 ``[nu]``, for ``frame_skip`` physics steps."""
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, nstep=self._frame_skip)
        mujoco.mj_forward(self.model, self.data)  # poses and sensors of the state after the last step
        distance = sum(np.linalg.norm(vector) for vector in self._vectors())
        return self._observation(), -float(distance), False, False, {"success": self._success()}

    def render(self) -> Any:
        """Return the current frame, uint8 ``[height, width, 3]``."""
        if self._viewer is None:
            self._viewer = OffScreenViewer(self.model, self.data, *self._size)
        self._viewer.make_context_current()  # another environment of this process may have changed the context
        return self._viewer.render("rgb_array", camera_id=self._camera)

    def close(self) -> None:
        """Free the renderer, if one was built."""
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None

    def _observation(self) -> Floats:
        data = self.data
        return np.concatenate([data.qpos, data.qvel, data.sensordata, *self._vectors()])

    def _vectors(self) -> list[Floats]:
        return [second() - first() for first, second, _ in self._pairs]

    def _success(self) -> bool:
        tolerances = [tolerance for _, _, tolerance in self._pairs]
        distances = [float(np.linalg.norm(vector)) for vector in self._vectors()]
        return bool(self._pairs) and all(d <= t for d, t in zip(distances, tolerances, strict=True))

    def _place(self, name: str) -> Callable[[], Floats]:
        """Return a function that returns the position of a site or body."""
        for kind, positions in (("site", self.data.site_xpos), ("body", self.data.xpos)):
            index = mujoco.mj_name2id(self.model, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), name)
            if index >= 0:
                return functools.partial(np.array, positions[index])  # copies a live view at each call
        raise ValueError(f"near: the scene has no site or body {name!r}")

    def _camera_id(self, name: str | None) -> int:
        index = -1 if name is None else mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, name)
        if index < 0 and name is not None:
            names = [self.model.camera(i).name for i in range(self.model.ncam)]
            raise ValueError(f"camera={name}: the scene has no such camera; it has {', '.join(names) or 'none'}")
        return int(index)

    def _joint(self, name: str) -> int:
        index = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_JOINT, name)
        if index < 0:
            names = [self.model.joint(i).name for i in range(self.model.njnt)]
            raise ValueError(f"spread: the scene has no joint {name!r}; it has {', '.join(names)}")
        return int(self.model.jnt_qposadr[index])


def _check(frame_skip: Any, near: Any, spread: Mapping[str, Any]) -> None:
    """Check the types of arguments; otherwise the scene would stand still or fail in its first reset."""
    if not isinstance(frame_skip, Integral) or frame_skip < 1:
        raise ValueError(f"frame_skip={frame_skip}: must be an integer number of physics steps, at least 1")
    for pair in near:
        if isinstance(pair, str) or len(pair) != 3 or not isinstance(pair[2], Real):
            raise ValueError(f"near: {pair!r} must be [body or site, body or site, tolerance in metres]")
    for joint, half_width in spread.items():
        if not isinstance(half_width, Real):
            raise ValueError(f"spread: {joint}={half_width!r} must be a number")

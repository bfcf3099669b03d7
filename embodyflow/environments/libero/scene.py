"""A LIBERO task's simulator, built once per process and shared by all environments of the task.

Building takes seconds and hundreds of megabytes. Each environment owns its MuJoCo ``MjData`` and selects it with
:meth:`Scene.use` before other calls.
"""

import contextlib
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from numpy.typing import NDArray

from embodyflow.environments.frustum import seen_geoms
from embodyflow.environments.libero import suites
from embodyflow.environments.robosuite import seeded

FIXTURE_SEED = 0
"""Seed of NumPy's global generator, from which LIBERO draws the fixtures' positions; its evaluations use 0."""
COLLISION_GEOMETRY = 0
"""Group of geoms that are not rendered."""


class Scene:
    """Model, goal and cameras of one task.

    Attributes:
        model: Model of MuJoCo.
        robot: Robot of robosuite.
        instruction: Instruction of the task in English.
        objects: Names of the objects of interest, in LIBERO's order.
    """

    def __init__(self, task: str) -> None:
        suites.import_libero()
        path = suites.task_file(task)
        from libero.libero.envs.bddl_utils import get_problem_info  # after import_libero

        self.instruction: str = get_problem_info(str(path))["language_instruction"]
        self._env = _build(str(path))
        self._env.visualize(dict.fromkeys(self._env._visualizations, False))
        self.model: mujoco.MjModel = self._env.sim.model._model
        self.model.vis.quality.offsamples = 0  # multisampling is expensive without a GPU
        self.robot: Any = self._env.robots[0]
        self.objects: list[str] = list(self._env.obj_of_interest)
        self._viewers: dict[tuple[int, int], OffScreenViewer] = {}

    def new_data(self) -> Any:
        """Return simulation data for one environment, wrapped by robosuite; MuJoCo's own object is ``._data``."""
        from robosuite.utils.binding_utils import MjData

        return MjData(self._env.sim.model)

    def use(self, data: Any) -> None:
        """Select the simulation data that the other methods read."""
        self._env.sim.data = data

    def succeeded(self) -> bool:
        """Return True if the task's goal is reached."""
        return bool(self._env._check_success())

    def object_position(self, name: str) -> NDArray[np.float64]:
        """Return the position of an object, fixture or region, float64 ``[3]``, in metres."""
        return np.array(self._env.object_states_dict[name].get_geom_state()["pos"])

    def update_visuals(self) -> None:
        """Update objects whose appearance shows a state, such as a stove that is on."""
        self._env._post_process()

    def draw(self, data: mujoco.MjData, camera: str, size: int) -> NDArray[np.uint8]:
        """Return a frame, upright, uint8 ``[size, size, 3]``."""
        if (size, size) not in self._viewers:
            viewer = OffScreenViewer(self.model, data, size, size, max_geom=4000)
            viewer.vopt.geomgroup[COLLISION_GEOMETRY] = 0
            self._viewers[size, size] = viewer
        viewer = self._viewers[size, size]
        viewer.data = data
        viewer.make_context_current()  # another scene of this process may have changed the context
        camera_id = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        with self._hide_unseen(data, camera_id):
            return np.asarray(viewer.render("rgb_array", camera_id=camera_id))

    @contextlib.contextmanager
    def _hide_unseen(self, data: mujoco.MjData, camera_id: int) -> Iterator[None]:
        """Hide geoms outside a camera's view while rendering, which saves many triangles in the wrist's view."""
        groups = self.model.geom_group.copy()
        self.model.geom_group[~seen_geoms(self.model, data, camera_id)] = COLLISION_GEOMETRY
        try:
            yield
        finally:
            self.model.geom_group[:] = groups


@cache
def scene(task: str) -> Scene:
    """Return the process's scene of a task."""
    return Scene(task)


def _build(path: str) -> Any:
    """Build LIBERO's environment without observations and without GL."""
    import robosuite
    from libero.libero.envs.bddl_base_domain import TASK_MAPPING
    from libero.libero.envs.bddl_utils import get_problem_info

    with seeded(FIXTURE_SEED), contextlib.redirect_stdout(sys.stderr):
        return TASK_MAPPING[get_problem_info(path)["problem_name"]](
            path,
            robots=["Panda"],
            controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
            initialization_noise=None,
            use_camera_obs=False,
            has_renderer=False,
            has_offscreen_renderer=False,
            ignore_done=True,
        )

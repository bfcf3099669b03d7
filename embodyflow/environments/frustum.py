"""Which parts of a scene a camera can see.

In software every triangle costs its time, also one outside the picture; MuJoCo hands all of them to OpenGL.
"""

import mujoco
import numpy as np
from numpy.typing import NDArray

MARGIN = 1e-3
"""Metres by which a geom must be outside, so that rounding never takes a pixel."""


def seen_geoms(model: mujoco.MjModel, data: mujoco.MjData, camera: int, aspect: float = 1.0) -> NDArray[np.bool_]:
    """Tell which geoms may leave a trace in a camera's picture.

    Those are the geoms :func:`in_frustum`; but all of them where a light throws shadows, or where a mirror is in the
    picture (MuJoCo's are planes and boxes), as shadows and mirror images come from outside of it.

    Args:
        model: of MuJoCo.
        data: the state, after ``mj_forward``.
        camera: the camera's id; a perspective camera given by ``fovy``.
        aspect: the picture's width by its height.

    Returns:
        bool ``[ngeom]``.
    """
    seen = in_frustum(model, data, camera, aspect)
    is_flat = (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE) | (model.geom_type == mujoco.mjtGeom.mjGEOM_BOX)
    materials = model.geom_matid[seen & is_flat]
    if model.light_castshadow.any() or model.mat_reflectance[materials[materials >= 0]].any():
        return np.ones(model.ngeom, bool)
    return seen


def in_frustum(model: mujoco.MjModel, data: mujoco.MjData, camera: int, aspect: float) -> NDArray[np.bool_]:
    """Tell which geoms' bounding boxes are not wholly beyond one side of what a camera sees, bool ``[ngeom]``.

    The sides are the planes through the camera and the picture's edges, and the one that parts what is before the
    camera from what is behind it (Assarsson & Möller, "Optimized View Frustum Culling Algorithms for Bounding Boxes",
    2000). Geoms without a bounding box, such as planes, are not beyond.
    """
    right, up, backward = data.cam_xmat[camera].reshape(3, 3).T
    forward = -backward
    height = np.tan(np.radians(model.cam_fovy[camera]) / 2)
    width = height * aspect
    edges = [width * forward + x for x in (-right, right)] + [height * forward + y for y in (-up, up)]
    sides = np.stack([forward, *edges])
    sides /= np.linalg.norm(sides, axis=1, keepdims=True)  # [5, 3], inwards
    turns = data.geom_xmat.reshape(-1, 3, 3)
    centers = data.geom_xpos + np.einsum("gij,gj->gi", turns, model.geom_aabb[:, :3]) - data.cam_xpos[camera]
    reach = np.abs(sides @ turns) @ model.geom_aabb[:, 3:, None]  # [G, 5, 1]: how far the box reaches along each normal
    is_inside: NDArray[np.bool_] = (centers @ sides.T + reach[..., 0] >= -MARGIN).all(1)
    return is_inside | (model.geom_rbound == 0)

"""View frustum culling: the geoms of a scene that a camera can see.

MuJoCo passes all triangles to OpenGL. Without a GPU each of them costs time, even outside the picture.
"""

import mujoco
import numpy as np
from numpy.typing import NDArray

MARGIN = 1e-3
"""Distance in metres by which a geom must be outside, so that rounding never removes a pixel."""


def seen_geoms(model: mujoco.MjModel, data: mujoco.MjData, camera: int, aspect: float = 1.0) -> NDArray[np.bool_]:
    """Return a mask of the geoms that may affect a camera's picture.

    These are the geoms :func:`in_frustum`. If a light casts shadows, or a mirror is in the picture (MuJoCo's mirrors
    are planes and boxes), all geoms may affect it, because their shadows and reflections can enter it from outside.

    Args:
        model: Model of MuJoCo.
        data: State of the simulation, after ``mj_forward``.
        camera: Id of the camera, a perspective camera defined by ``fovy``.
        aspect: Ratio of the picture's width to its height.

    Returns:
        A mask, bool ``[ngeom]``.
    """
    seen = in_frustum(model, data, camera, aspect)
    is_flat = (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE) | (model.geom_type == mujoco.mjtGeom.mjGEOM_BOX)
    materials = model.geom_matid[seen & is_flat]
    if model.light_castshadow.any() or model.mat_reflectance[materials[materials >= 0]].any():
        return np.ones(model.ngeom, bool)
    return seen


def in_frustum(model: mujoco.MjModel, data: mujoco.MjData, camera: int, aspect: float) -> NDArray[np.bool_]:
    """Return a mask, bool ``[ngeom]``, of the geoms whose bounding boxes are not entirely outside the view frustum.

    A box is outside if it lies entirely behind one of five planes (Assarsson & Möller, "Optimized View Frustum Culling
    Algorithms for Bounding Boxes", 2000): the four planes through the camera and an edge of the picture, and the plane
    through the camera that separates front from back. Geoms without a bounding box, such as planes, are never outside.
    """
    right, up, backward = data.cam_xmat[camera].reshape(3, 3).T
    forward = -backward
    height = np.tan(np.radians(model.cam_fovy[camera]) / 2)
    width = height * aspect
    edges = [width * forward + x for x in (-right, right)] + [height * forward + y for y in (-up, up)]
    sides = np.stack([forward, *edges])
    sides /= np.linalg.norm(sides, axis=1, keepdims=True)  # inward normals, [5, 3]
    rotations = data.geom_xmat.reshape(-1, 3, 3)
    centers = data.geom_xpos + np.einsum("gij,gj->gi", rotations, model.geom_aabb[:, :3]) - data.cam_xpos[camera]
    reach = np.abs(sides @ rotations) @ model.geom_aabb[:, 3:, None]  # extent of the box along each normal, [G, 5, 1]
    is_inside: NDArray[np.bool_] = (centers @ sides.T + reach[..., 0] >= -MARGIN).all(1)
    return is_inside | (model.geom_rbound == 0)

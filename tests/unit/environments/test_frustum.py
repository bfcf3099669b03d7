"""Tests that hiding the geoms outside a camera's view does not change its picture."""

import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.environments.frustum import in_frustum, seen_geoms
from embodyflow.simulation.rendering import rendering_problem

HIDDEN = 5


def scene(seed: int, light: str = 'castshadow="false"', floor: str = "") -> mujoco.MjModel:
    """Return a model of sixty small objects around three cameras."""
    rng = np.random.default_rng(seed)
    things = "".join(
        f'<geom type="{kind}" pos="{x:.3f} {y:.3f} {z:.3f}" euler="{a:.0f} {b:.0f} 0" size=".3 .05 .1" '
        f'rgba="{abs(x) / 3:.2f} {abs(y) / 3:.2f} {abs(z) / 3:.2f} 1"/>'
        for kind in ("box", "sphere", "capsule", "ellipsoid", "cylinder")
        for x, y, z, a, b in np.hstack([rng.uniform(-3, 3, (12, 3)), rng.uniform(0, 360, (12, 2))])
    )
    cameras = "".join(
        f'<camera name="{name}" pos="{x:.2f} {y:.2f} 0" euler="{a:.0f} {b:.0f} 20" fovy="{fovy}"/>'
        for name, fovy, (x, y, a, b) in zip(
            "abc", (20, 45, 100), rng.uniform(-1, 1, (3, 4)) * [1, 1, 90, 180], strict=True
        )
    )
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><asset><material name="glass" reflectance=".5"/></asset>'
        f'<worldbody><light pos="0 0 4" {light}/>{floor}'
        f'<geom type="plane" size="9 9 1" pos="0 0 -3" rgba=".5 .5 .4 1"/>{things}{cameras}</worldbody></mujoco>'
    )


def posed(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 96), (96, 40)])
@pytest.mark.parametrize("seed", range(3))
def test_unseen_geoms_have_no_pixel(seed: int, height: int, width: int) -> None:
    if (problem := rendering_problem()) is not None:
        pytest.skip(problem)
    model = scene(seed)
    data, unseen = posed(model), 0
    viewer = OffScreenViewer(model, data, width, height)
    viewer.vopt.geomgroup[HIDDEN] = 0
    for camera in range(model.ncam):
        whole = viewer.render("rgb_array", camera_id=camera)
        seen = seen_geoms(model, data, camera, width / height)
        model.geom_group[~seen] = HIDDEN
        np.testing.assert_array_equal(viewer.render("rgb_array", camera_id=camera), whole)
        model.geom_group[:] = 0
        unseen += np.count_nonzero(~seen)
    viewer.close()
    assert unseen > model.ngeom  # summed over three cameras


@given(seed=st.integers(0, 20), camera=st.integers(0, 2), aspect=st.floats(0.3, 3))
def test_a_geom_whose_centre_is_in_the_picture_is_seen(seed: int, camera: int, aspect: float) -> None:
    model = scene(seed)
    data = posed(model)
    offsets = (data.geom_xpos - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)
    right, up, depth = offsets[:, 0], offsets[:, 1], -offsets[:, 2]
    edge = np.tan(np.radians(model.cam_fovy[camera]) / 2) * depth
    in_picture = (depth > 0) & (abs(up) < edge) & (abs(right) < edge * aspect)
    seen = in_frustum(model, data, camera, aspect)
    assert seen[in_picture].all()
    assert not seen[(depth < -0.6) & (model.geom_rbound > 0)].any()  # behind the camera by more than their size
    assert seen[model.geom_rbound == 0].all()


@pytest.mark.parametrize(
    ("light", "mirror", "hides_some"),
    [
        ('castshadow="true"', "", False),
        ('castshadow="false"', '<geom type="box" size="9 9 .1" pos="0 0 -2" material="glass"/>', False),
        ('castshadow="false"', '<geom type="plane" size="1 1 1" material="glass"/>', False),
        (
            'castshadow="false"',
            '<geom type="ellipsoid" size="9 9 .1" pos="0 0 -2" material="glass"/>',
            True,
        ),  # not flat
        ('castshadow="false"', '<geom type="box" size=".1 .1 .1" pos="0 0 900" material="glass"/>', True),  # not seen
    ],
)
def test_shadows_and_mirrors_make_all_geoms_seen(light: str, mirror: str, hides_some: bool) -> None:
    model = scene(0, light, mirror)
    assert seen_geoms(model, posed(model), 2).all() is np.bool_(not hides_some)

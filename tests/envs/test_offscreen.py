"""Pictures against projective geometry, and what happens on machines that cannot draw."""

import subprocess
import sys

import mujoco
import numpy as np
import pytest

from palaestra.envs import offscreen
from palaestra.envs.offscreen import Offscreen, RenderingUnavailable

needs_gl = pytest.mark.skipif(offscreen.available() is None, reason="no OpenGL backend on this machine")

BALL = """
<mujoco>
  <visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual>
  <worldbody>
    <camera name="eye" pos="0 -1 0" xyaxes="1 0 0 0 0 1" fovy="45"/>
    <camera name="behind" pos="0 1 0" xyaxes="-1 0 0 0 0 1" fovy="45"/>
    <geom name="ball" type="sphere" size="0.1" pos="0.1 0 0.2" rgba="1 0 0 1"/>
  </worldbody>
</mujoco>
"""


def state(xml: str) -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def red(picture: np.ndarray) -> np.ndarray:
    return np.argwhere((picture[..., 0] > 128) & (picture[..., 1] < 64))


@needs_gl
@pytest.mark.parametrize("quality", ["fast", "full"])
def test_a_ball_is_where_the_pinhole_camera_puts_it(quality):
    model, data = state(BALL)
    with Offscreen(model, 120, 100, quality=quality) as camera:
        picture = camera.render(data, "eye")
    assert picture.shape == (100, 120, 3)
    assert picture.dtype == np.uint8
    assert picture.flags.c_contiguous
    pixels_per_metre = 50 / np.tan(np.deg2rad(22.5))  # at the distance of 1 m
    spots = red(picture)
    row, column = spots.mean(axis=0) + 0.5
    assert column == pytest.approx(60 + 0.1 * pixels_per_metre, abs=1)
    assert row == pytest.approx(50 - 0.2 * pixels_per_metre, abs=1)  # the top row comes first
    assert len(spots) == pytest.approx(np.pi * (0.1 * pixels_per_metre) ** 2, rel=0.1)


@needs_gl
def test_several_contexts_live_side_by_side_and_close_in_any_order():
    model, data = state(BALL)
    first, second = Offscreen(model, 32, 32), Offscreen(model, 64, 48)
    before = first.render(data, "eye"), second.render(data, "behind")
    first.close()
    first.close()
    np.testing.assert_array_equal(second.render(data, "behind"), before[1])
    with pytest.raises(RuntimeError, match="closed"):
        first.render(data)
    second.close()
    for _ in range(20):
        with Offscreen(model, 32, 32) as again:
            np.testing.assert_array_equal(again.render(data, "eye"), before[0])
    assert not [o for o in offscreen._OPEN if o.model is model and o._context is not None]


@needs_gl
def test_the_model_is_left_as_it_was():
    model, _ = state(SPHERE)
    before = model.vis.quality.shadowsize, model.vis.quality.offsamples, model.vis.global_.offwidth
    faces, counts = model.mesh_face.copy(), model.mesh_facenum.copy()
    Offscreen(model, 2000, 10).close()
    assert (model.vis.quality.shadowsize, model.vis.quality.offsamples, model.vis.global_.offwidth) == before
    np.testing.assert_array_equal(model.mesh_face, faces)
    np.testing.assert_array_equal(model.mesh_facenum, counts)


@needs_gl
def test_bad_arguments_get_a_sentence():
    model, data = state(BALL)
    with pytest.raises(ValueError, match=r"width=0, expected 1 to"):
        Offscreen(model, 0, 32)
    with pytest.raises(ValueError, match=r"quality='best', expected"):
        Offscreen(model, 32, 32, quality="best")
    with Offscreen(model, 32, 32) as camera:
        for wrong in ("eyes", 7):
            with pytest.raises(ValueError, match=r"is not in this model, expected one of \['eye', 'behind'\]"):
                camera.render(data, wrong)


# A ball of 10,000 facets, as a mesh: corners on the unit sphere, triangulated in latitude and longitude.
_A, _B = np.meshgrid(np.linspace(0, np.pi, 51), np.linspace(0, 2 * np.pi, 100, endpoint=False), indexing="ij")
_CORNERS = np.stack([np.sin(_A) * np.cos(_B), np.sin(_A) * np.sin(_B), np.cos(_A)], axis=-1).reshape(-1, 3)
_GRID = np.arange(51 * 100).reshape(51, 100)
_HERE, _EAST = _GRID[:-1], np.roll(_GRID, -1, axis=1)[:-1]
_SOUTH, _BOTH = _GRID[1:], np.roll(_GRID, -1, axis=1)[1:]
_FACES = np.concatenate([np.stack(t, axis=-1).reshape(-1, 3) for t in ((_HERE, _SOUTH, _BOTH), (_HERE, _BOTH, _EAST))])
SPHERE = f"""
<mujoco>
  <asset><mesh name="ball" vertex="{" ".join(f"{v:.6f}" for v in _CORNERS.ravel() * 0.1)}"
    face="{" ".join(map(str, _FACES.ravel()))}"/></asset>
  <worldbody>
    <camera name="eye" pos="0 -0.5 0" xyaxes="1 0 0 0 0 1" fovy="45"/>
    <geom type="mesh" mesh="ball" rgba="1 0 0 1"/>
  </worldbody>
</mujoco>
"""


@needs_gl
def test_merged_facets_do_not_show():
    model, data = state(SPHERE)
    pictures = []
    for quality in ("full", "fast"):
        with Offscreen(model, 84, 84, quality=quality) as camera:
            pictures.append(camera.render(data, "eye").astype(float))
    assert np.abs(pictures[0] - pictures[1]).mean() < 2  # of 255


@needs_gl
def test_only_the_unseen_is_left_out():
    model, data = state(SPHERE)
    with Offscreen(model, 40, 30) as camera:
        meshes, left_out = camera._meshes, []
        for azimuth in range(0, 360, 3):
            view = mujoco.MjvCamera()
            view.lookat[:], view.distance, view.azimuth, view.elevation = [0.5, 0, 0.1], 0.3, azimuth, -20
            picture = camera.render(data, view)
            left_out.append(camera._scene.geoms[0].type == mujoco.mjtGeom.mjGEOM_NONE)
            camera._meshes = meshes[:0]
            np.testing.assert_array_equal(camera.render(data, view), picture)
            camera._meshes = meshes
    assert 0.3 < np.mean(left_out) < 0.9


def test_merging_keeps_the_shape_within_a_cell():
    model, _ = state(SPHERE)
    corners = model.mesh_vert.copy()
    before = int(model.mesh_facenum[0])
    offscreen._merge_facets(model, 0, cells=20)
    faces = model.mesh_face[: model.mesh_facenum[0]]
    assert len(faces) < before / 3
    assert (np.sort(faces, axis=1)[:, :-1] != np.sort(faces, axis=1)[:, 1:]).all()  # every facet has an area
    left = corners[np.unique(faces)]
    nearest = np.linalg.norm(corners[:, None] - left[None], axis=-1).min(axis=1)
    assert nearest.max() < 0.2 / 20 * np.sqrt(3)


def fresh_backend(monkeypatch, value: str | None, works: tuple[str, ...]) -> str:
    """``backend()`` as a new process would find it, with these backends working."""
    monkeypatch.setattr(offscreen, "_why_not", lambda name: None if name in works else "no driver")
    monkeypatch.setattr(offscreen, "_CANDIDATES", ("egl", "osmesa", "glfw"))
    monkeypatch.setenv("MUJOCO_GL", value or "")
    return offscreen.backend.__wrapped__()


def test_which_backend_is_taken(monkeypatch):
    monkeypatch.delitem(sys.modules, "robosuite.utils.binding_utils", raising=False)
    assert fresh_backend(monkeypatch, None, ("osmesa", "glfw")) == "osmesa"
    assert fresh_backend(monkeypatch, "glfw", ("egl", "glfw")) == "glfw"
    with pytest.raises(RenderingUnavailable, match=r"MUJOCO_GL=egl allows no other.*egl: no driver.*apt-get install"):
        fresh_backend(monkeypatch, "egl", ("osmesa",))
    with pytest.raises(RenderingUnavailable, match=r"MUJOCO_GL=off switches rendering off"):
        fresh_backend(monkeypatch, "off", ("osmesa",))
    with pytest.raises(RenderingUnavailable, match=r"egl: no driver; osmesa: no driver; glfw: no driver; on Debian"):
        fresh_backend(monkeypatch, None, ())
    # robosuite writes MUJOCO_GL=egl when imported: that is not the user's wish.
    monkeypatch.setitem(sys.modules, "robosuite.utils.binding_utils", sys)
    assert fresh_backend(monkeypatch, "egl", ("osmesa",)) == "osmesa"


@needs_gl
@pytest.mark.parametrize("first", ["mujoco.renderer", "robosuite", "palaestra.envs.offscreen"])
def test_pictures_work_in_any_order_of_imports(first):
    code = f"""
import importlib, logging, os
logging.disable(logging.WARNING)
os.environ.pop("MUJOCO_GL", None)
importlib.import_module({first!r})
import mujoco
from palaestra.envs.offscreen import Offscreen
model = mujoco.MjModel.from_xml_string({BALL!r})
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
print(Offscreen(model, 32, 32).render(data, "eye").max())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["255"], done.stderr
    assert "Exception ignored" not in done.stderr

"""Pictures of a MuJoCo world without a window, fast enough to be an observation.

MuJoCo's default picture pays for a 4096-pixel shadow map, multisampling, reflections, and every facet of a
robot's CAD model; without a graphics card they are most of the time. :class:`Offscreen` leaves them out, merges
the facets that a picture of its size cannot show, and draws the rest. It opens its own OpenGL context, so it
does not matter which backend ``mujoco.gl_context`` or robosuite settled on when they were imported, and nothing
here touches OpenGL before the first :class:`Offscreen` is made.
"""

from __future__ import annotations

import atexit
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes.util import find_library
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal
from weakref import WeakSet

import mujoco
import numpy as np

SceneEdit = Callable[[mujoco.MjModel, mujoco.MjData, mujoco.MjvCamera, mujoco.MjvScene], None]
"""Changes what is drawn, never what happens: called after the scene was built for a camera and before it is drawn, it
may add geoms and move ``scene.camera``, and must leave model and data alone. A world of ours keeps the list
``scene_edits`` for the perturbations around it and hands it to each :class:`Offscreen` it makes."""

_OFF = ("disable", "disabled", "off", "false", "0")
_ANY = ("", "enable", "enabled", "on", "true", "1")
_CANDIDATES = {"Linux": ("egl", "osmesa", "glfw"), "Darwin": ("cgl",)}.get(platform.system(), ("glfw",))
_ALIASES = {"glx": "glfw", "wgl": "glfw"}
_PACKAGES = "on Debian or Ubuntu install one of: 'apt-get install libegl1 libgl1' or 'apt-get install libosmesa6'"
_PROBE = """
import mujoco
from mujoco.{backend} import GLContext
context = GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 50).free()
context.free()
"""


class RenderingUnavailable(RuntimeError):
    """No picture can be drawn on this machine; the message says why and which system package helps."""


def available() -> str | None:
    """The OpenGL backend that works here (``"egl"``, ``"osmesa"``, ``"glfw"``, ``"cgl"``), or ``None``."""
    try:
        return backend()
    except RenderingUnavailable:
        return None


@lru_cache(maxsize=1)
def backend() -> str:
    """The OpenGL backend that works here, found once per process and then kept in ``MUJOCO_GL``.

    ``MUJOCO_GL`` decides where it is set; otherwise the first of egl, osmesa and glfw that starts. Each is
    tried in a child process, because a driver that cannot start may also take its process down.

    Raises :class:`RenderingUnavailable` with the reason for each backend and the system package that helps.
    """
    wish = os.environ.get("MUJOCO_GL", "").lower().strip()
    if wish in _OFF:
        raise RenderingUnavailable(f"MUJOCO_GL={wish} switches rendering off; unset it, or set it to egl or osmesa")
    wish = _ALIASES.get(wish, wish)
    # robosuite writes "egl" when it is imported, whatever the machine can do: that is nobody's wish.
    forced = wish == "egl" and "robosuite.utils.binding_utils" in sys.modules
    candidates = _CANDIDATES if wish in _ANY or forced else (wish,)
    reasons = []
    for candidate in candidates:
        reason = _why_not(candidate)
        if reason is None:
            os.environ["MUJOCO_GL"] = candidate
            return candidate
        reasons.append(f"{candidate}: {reason}")
    chosen = f" (MUJOCO_GL={wish} allows no other)" if len(candidates) == 1 and wish not in _ANY else ""
    raise RenderingUnavailable(f"no OpenGL backend starts here{chosen}: {'; '.join(reasons)}; {_PACKAGES}")


def _why_not(candidate: str) -> str | None:
    """Why a backend cannot be used, or ``None`` when a child process has drawn with it."""
    library = {"egl": "EGL", "osmesa": "OSMesa"}.get(candidate)
    if library and not find_library(library):
        return f"the library lib{library} is not installed"
    if candidate == "glfw" and platform.system() == "Linux" and not _has_display():
        return "there is no display (DISPLAY and WAYLAND_DISPLAY are unset)"
    if candidate not in ("egl", "osmesa", "glfw", "cgl"):
        return "not the name of a backend, expected egl, osmesa or glfw"
    environment = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"}
    environment["MUJOCO_GL"] = "disable"  # so that "import mujoco" itself loads no driver
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROBE.format(backend=candidate)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return "it does not answer within 60 s"
    if child.returncode == 0:
        return None
    return (child.stderr.strip().splitlines() or [f"it ends with exit code {child.returncode}"])[-1]


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _gl_context(width: int, height: int) -> Any:
    """A context of the backend that works, whichever modules were imported before in whatever order."""
    name = backend()
    if "OpenGL.GL" not in sys.modules and name in ("egl", "osmesa"):
        os.environ["PYOPENGL_PLATFORM"] = name
    try:
        return import_module(f"mujoco.{name}").GLContext(width, height)
    except (ImportError, RuntimeError, AttributeError) as error:
        raise RenderingUnavailable(
            f"the {name} backend starts in a fresh process but not in this one, where PyOpenGL is already loaded "
            f"for {os.environ.get('PYOPENGL_PLATFORM', 'another platform')}: {error}; set MUJOCO_GL={name} before "
            "starting Python"
        ) from error


class Offscreen:
    """Draws one model at one size. Owns an OpenGL context: ``close`` it, or use it in a ``with`` block.

    ``model`` is a plain ``mujoco.MjModel``; ``width`` and ``height`` are in pixels. ``quality="fast"`` leaves
    out shadows, multisampling, reflections and tiny facets; ``"full"`` draws what MuJoCo draws. ``option`` is a
    ``mujoco.MjvOption`` to choose what is visible (``option.geomgroup[0] = 0`` hides a group). ``edits``
    are applied to every picture, in order; a list may grow later. Use it from the thread that made it.

    Raises :class:`RenderingUnavailable` where no OpenGL backend starts, ``ValueError`` for an impossible size.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        width: int,
        height: int,
        *,
        quality: Literal["fast", "full"] = "fast",
        edits: Sequence[SceneEdit] = (),
    ) -> None:
        self._context: Any = None  # first, so that close() works whatever fails below
        self._drawer: Any = None
        for argument, value in (("width", width), ("height", height)):
            if not 1 <= value <= 16384:
                raise ValueError(f"{argument}={value}, expected 1 to 16384 pixels")
        if quality not in ("fast", "full"):
            raise ValueError(f"quality={quality!r}, expected 'fast' or 'full'")
        self.model = model
        self.width, self.height = int(width), int(height)
        self.option = mujoco.MjvOption()
        self.edits = edits
        self._scene = mujoco.MjvScene(model, maxgeom=2 * (model.ngeom + model.nsite + model.ntendon) + 1000)
        if quality == "fast":
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._scene.flags[flag] = 0
        self._meshes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)
        self._viewport = mujoco.MjrRect(0, 0, self.width, self.height)
        self._bottom_up = np.empty((self.height, self.width, 3), np.uint8)
        self._context = _gl_context(self.width, self.height)
        self._context.make_current()
        with _drawing_settings(model, self.width, self.height, quality):
            self._drawer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._drawer)
        _OPEN.add(self)
        _close_at_exit()

    def render(self, data: mujoco.MjData, camera: str | int | mujoco.MjvCamera = -1) -> np.ndarray:
        """The picture of ``data``: a new uint8 array [height, width, 3], RGB, top row first, contiguous.

        ``camera`` is a name or an index of the model, -1 for the free camera, or a ``mujoco.MjvCamera``.
        Raises ``ValueError`` for an unknown camera and ``RuntimeError`` after ``close``.
        """
        if self._context is None:
            raise RuntimeError("this Offscreen is closed; make a new one")
        view = camera if isinstance(camera, mujoco.MjvCamera) else self._fixed_camera(camera)
        self._context.make_current()
        mujoco.mjv_updateScene(self.model, data, self.option, None, view, mujoco.mjtCatBit.mjCAT_ALL, self._scene)
        for edit in self.edits:
            edit(self.model, data, view, self._scene)
        self._skip_unseen(data)
        mujoco.mjr_render(self._viewport, self._scene, self._drawer)
        mujoco.mjr_readPixels(self._bottom_up, None, self._viewport, self._drawer)
        return self._bottom_up[::-1].copy()

    def _skip_unseen(self, data: mujoco.MjData) -> None:
        """Leave out meshes whose bounding sphere is outside of the picture; the driver would transform each corner."""
        eye = self._scene.camera[0]
        skewed = eye.frustum_center or eye.frustum_width or eye.frustum_top + eye.frustum_bottom
        if not len(self._meshes) or skewed or eye.orthographic:
            return
        tall = (eye.frustum_top - eye.frustum_bottom) / 2 / eye.frustum_near  # tangents of the half angles
        wide = tall * self.width / self.height
        middle = (eye.pos + self._scene.camera[1].pos) / 2  # MuJoCo draws from between the two eyes
        offset = data.geom_xpos[self._meshes] - middle
        ahead, up, right = offset @ eye.forward, offset @ eye.up, offset @ np.cross(eye.forward, eye.up)
        radius = self.model.geom_rbound[self._meshes]
        unseen = ahead < -radius
        unseen |= np.abs(up) > ahead * tall + radius * np.hypot(1, tall)
        unseen |= np.abs(right) > ahead * wide + radius * np.hypot(1, wide)
        hidden = set(self._meshes[unseen].tolist())
        for shape in self._scene.geoms[: self._scene.ngeom] if hidden else ():
            if shape.objtype == mujoco.mjtObj.mjOBJ_GEOM and shape.objid in hidden:
                shape.type = mujoco.mjtGeom.mjGEOM_NONE

    def close(self) -> None:
        """Free the OpenGL context. Safe to call twice."""
        context, drawer = self._context, self._drawer
        self._context = self._drawer = None
        if context is None:
            return
        if drawer is not None:
            context.make_current()  # its buffers live in this context, not in the one used last
            drawer.free()
        context.free()

    def __enter__(self) -> Offscreen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _fixed_camera(self, camera: str | int) -> mujoco.MjvCamera:
        names = [self.model.camera(i).name for i in range(self.model.ncam)]
        index = names.index(camera) if camera in names else camera
        if not isinstance(index, (int, np.integer)) or not -1 <= index < len(names):
            raise ValueError(f"camera={camera!r} is not in this model, expected one of {names} or an index, -1 is free")
        view = mujoco.MjvCamera()
        if index == -1:
            mujoco.mjv_defaultFreeCamera(self.model, view)
        else:
            view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, int(index)
        return view


_OPEN: WeakSet[Offscreen] = WeakSet()


@lru_cache(maxsize=1)
def _close_at_exit() -> None:
    """Have what is still open closed before the driver shuts itself down, which it registered earlier."""

    def close_all() -> None:
        for offscreen in list(_OPEN):
            offscreen.close()

    atexit.register(close_all)


@contextmanager
def _drawing_settings(model: mujoco.MjModel, width: int, height: int, quality: str) -> Iterator[None]:
    """What a drawing context reads from the model while it is made, set for that long and put back."""
    frame, detail = model.vis.global_, model.vis.quality
    kept = frame.offwidth, frame.offheight, detail.shadowsize, detail.offsamples
    meshes = model.mesh_facenum, model.mesh_face, model.mesh_facenormal, model.mesh_facetexcoord
    kept_meshes = [array.copy() for array in meshes]
    frame.offwidth, frame.offheight = width, height
    if quality == "fast":
        detail.shadowsize = detail.offsamples = 0
        for mesh in range(model.nmesh):
            # Sides of 1/40 of a mesh are about a pixel, even where one mesh spans half of a small picture.
            _merge_facets(model, mesh, cells=max(40, max(width, height) // 4))
    try:
        yield
    finally:
        frame.offwidth, frame.offheight, detail.shadowsize, detail.offsamples = kept
        for array, copy in zip(meshes, kept_meshes, strict=True):
            array[:] = copy


def _merge_facets(model: mujoco.MjModel, mesh: int, cells: int) -> None:
    """Move a mesh's corners to one per cell of a grid and drop the facets that vanish.

    The grid has ``cells`` cells along the mesh's longest side. Source: vertex clustering, Rossignac and Borrel,
    "Multi-resolution 3D approximations for rendering complex scenes" (1993).
    """
    start, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    corners = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]]
    if count < cells:  # nothing to gain
        return
    low, high = corners.min(axis=0), corners.max(axis=0)
    x, y, z = np.floor((corners - low) * (cells / (high - low).max())).astype(np.int64).T
    _, first, cell = np.unique((x * 65536 + y) * 65536 + z, return_index=True, return_inverse=True)
    faces = first[cell.ravel()][model.mesh_face[start : start + count]]
    a, b, c = np.sort(faces, axis=1).astype(np.int64).T
    _, once = np.unique((a * len(corners) + b) * len(corners) + c, return_index=True)
    left = once[(a[once] != b[once]) & (b[once] != c[once])]
    model.mesh_face[start : start + len(left)] = faces[left]
    for array in (model.mesh_facenormal, model.mesh_facetexcoord):
        array[start : start + len(left)] = array[start + left]
    model.mesh_facenum[mesh] = len(left)

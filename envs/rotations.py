"""Rotations: from one convention into another, and to one name where a rotation has several."""

from __future__ import annotations

import math
import warnings
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.transform import Rotation as _Rotation

from .interface import ROTATION_SIZE, Rotation

_QUATERNIONS = ("quat_xyzw", "quat_wxyz")
ANGLED = ("axis_angle", "euler_xyz")  # the conventions whose numbers have a unit
# An exact reordering exists between these: no arithmetic, so a quaternion also keeps its sign.
_REORDER = {
    ("quat_wxyz", "quat_xyzw"): [1, 2, 3, 0],
    ("quat_xyzw", "quat_wxyz"): [3, 0, 1, 2],
    ("rot6d_columns", "rot6d_rows"): [0, 3, 1, 4, 2, 5],
    ("rot6d_rows", "rot6d_columns"): [0, 2, 4, 1, 3, 5],
}
# Within this of a half turn, quaternions of either sign and axes of either sign are one rotation up to rounding.
_HALF_TURN = 1e-6
# Components of an axis below this do not decide its sign: noise would.
_SIGN_FLOOR = 1e-3


def convert_rotation(values: ArrayLike, source: Rotation, target: Rotation, fraction: float = 1.0) -> np.ndarray:
    """Rotations [..., S] of convention ``source`` as ``target``, float64 [..., T]; angles in rad.

    The conventions are those of :class:`Component`; a ``matrix`` is row-major. ``fraction`` scales the rotation
    about its own axis (1/n of it, applied n times, is the whole). The result is canonical wherever a rotation
    has several names: axis-angle has an angle in [0, pi], a quaternion has w >= 0, and at a half turn the first
    component of the axis that is not close to zero is positive; so ``q`` and ``-q`` give the same numbers.
    Between two quaternion orders, or two layouts of six numbers, the values are only reordered.

    Six numbers become a rotation by Gram-Schmidt ("On the Continuity of Rotation Representations in Neural
    Networks", section B). Raises ``ValueError`` for values that are no rotation: not finite, a quaternion of
    length zero, parallel columns, a reflection.
    """
    for convention in (source, target):
        if convention not in ROTATION_SIZE:
            raise ValueError(f"rotation convention {convention!r} is not one of {get_args(Rotation)}")
    values = np.asarray(values, np.float64)
    if values.shape[-1:] != (ROTATION_SIZE[source],):
        raise ValueError(f"{source} has {ROTATION_SIZE[source]} numbers, got an array of shape {values.shape}")
    if fraction == 1.0 and (source, target) in _REORDER:
        return values[..., _REORDER[source, target]]
    if not np.isfinite(values).all():
        raise ValueError(f"{source} is not a rotation: {_short(values)} is not finite")
    batch = values.shape[:-1]
    rotation = _decode(values.reshape(-1, ROTATION_SIZE[source]), source)
    if fraction != 1.0:
        rotation = _Rotation.from_rotvec(rotation.as_rotvec() * fraction)
    return _encode(rotation, target).reshape(*batch, ROTATION_SIZE[target])


def _decode(values: np.ndarray, source: Rotation) -> _Rotation:
    if source in _QUATERNIONS:
        if (np.linalg.norm(values, axis=-1) < 1e-9).any():
            raise ValueError(f"{source} is not a rotation: {_short(values)} has length zero")
        return _Rotation.from_quat(values if source == "quat_xyzw" else values[:, [1, 2, 3, 0]])
    if source == "axis_angle":
        return _Rotation.from_rotvec(values)
    if source == "euler_xyz":
        return _Rotation.from_euler("XYZ", values)
    if source == "matrix":
        matrix = values.reshape(-1, 3, 3)
        if (np.linalg.det(matrix) < 1e-9).any():
            raise ValueError(f"matrix is not a rotation: {_short(values)} is singular or a reflection")
        return _Rotation.from_matrix(matrix)
    columns = values.reshape(-1, 2, 3) if source == "rot6d_columns" else values.reshape(-1, 3, 2).swapaxes(1, 2)
    first, second = columns[:, 0], columns[:, 1]
    length = np.linalg.norm(first, axis=-1, keepdims=True)
    first = first / np.maximum(length, 1e-12)
    second = second - (first * second).sum(-1, keepdims=True) * first
    height = np.linalg.norm(second, axis=-1, keepdims=True)
    if (length < 1e-9).any() or (height < 1e-9).any():
        raise ValueError(f"{source} is not a rotation: {_short(values)} has parallel or vanishing columns")
    second = second / height
    return _Rotation.from_matrix(np.stack([first, second, np.cross(first, second)], axis=-1))


def _encode(rotation: _Rotation, target: Rotation) -> np.ndarray:
    quaternion = _canonical(rotation.as_quat())
    if target in _QUATERNIONS:
        return quaternion if target == "quat_xyzw" else quaternion[:, [3, 0, 1, 2]]
    rotation = _Rotation.from_quat(quaternion)
    if target == "axis_angle":
        return rotation.as_rotvec()
    if target == "euler_xyz":
        with warnings.catch_warnings():  # at gimbal lock one of the many equal answers is as good as another
            warnings.simplefilter("ignore", UserWarning)
            return rotation.as_euler("XYZ")
    matrix = rotation.as_matrix()
    if target == "matrix":
        return matrix.reshape(-1, 9)
    columns = matrix[:, :, :2]
    return (columns.swapaxes(1, 2) if target == "rot6d_columns" else columns).reshape(-1, 6)


def _canonical(quaternion: np.ndarray) -> np.ndarray:
    """Of ``q`` and ``-q`` (xyzw) always the same one."""
    axis, w = quaternion[:, :3], quaternion[:, 3]
    half_turn = np.abs(w) < _HALF_TURN
    significant = np.abs(axis) > _SIGN_FLOOR
    first = np.take_along_axis(axis, significant.argmax(axis=1)[:, None], axis=1)[:, 0]
    flip = np.where(half_turn, first < 0, w < 0)
    quaternion = np.where(flip[:, None], -quaternion, quaternion)
    quaternion[half_turn, 3] = 0.0
    return quaternion + 0.0  # -0.0 would decide the sign of an Euler angle


def rotation_bound(rotation: Rotation) -> float:
    """The largest magnitude that a number of this convention has; in rad where the numbers are angles."""
    return math.pi if rotation in ANGLED else 1.0


def _short(values: np.ndarray) -> str:
    return np.array2string(np.asarray(values).ravel()[:9], precision=3, separator=", ")

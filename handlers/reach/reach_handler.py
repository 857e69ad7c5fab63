"""A policy for robots, for clients of openpi: it moves joints to a target, as fast as it has got so far.

An observation has the positions of the joints and where they are to be, both of the same number of joints::

    {"state": array [joints], "target": array [joints]}

The answer has the next positions, ``{"actions": array [HORIZON, joints]}``. The velocity that the joints have at their
end belongs to the episode, whose next actions begin with it. The rows of a batch belong to different episodes: those
with the same number of joints are stacked and computed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ts.context import Context

Array = np.ndarray[Any, np.dtype[np.float32]]

#: Positions in one answer.
HORIZON = 10
#: How much of its velocity a joint keeps, and how much of its distance from the target it adds, within limits.
MOMENTUM, GAIN, FASTEST = np.float32(0.8), np.float32(0.2), np.float32(0.1)


class ReachHandler:
    """Keeps the velocities of each episode's joints."""

    def initialize(self, context: Context) -> None:
        """There is nothing to load."""

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Answer one batch, which has at most one observation of each episode."""
        answers: list[Any] = [None] * len(data)
        rows: dict[int, list[tuple[int, Array, Array, Array]]] = {}
        for idx, row in enumerate(data):
            try:
                state, target = (_joints(row["body"], name) for name in ("state", "target"))
                velocity = context.state.get(idx, np.zeros_like(state))
                if not state.shape == target.shape == velocity.shape:
                    raise ValueError(f"{len(velocity)} joints were expected, not {len(state)} of {len(target)}.")
                rows.setdefault(len(state), []).append((idx, state, target, velocity))
            except ValueError as error:
                context.fail(idx, str(error))
        for same in rows.values():
            actions, velocities = move(*map(np.stack, list(zip(*same, strict=True))[1:]))
            for (idx, *_), action, velocity in zip(same, actions, velocities, strict=True):
                context.state[idx] = velocity.copy()
                answers[idx] = {"actions": action}
        return answers


def move(states: Array, targets: Array, velocities: Array) -> tuple[Array, Array]:
    """Return the next positions [rows, HORIZON, joints], and the velocities at their end [rows, joints]."""
    positions = []
    for _ in range(HORIZON):
        velocities = MOMENTUM * velocities + GAIN * np.clip(targets - states, -FASTEST, FASTEST)
        states = states + velocities
        positions.append(states)
    return np.stack(positions, axis=1), velocities


def _joints(observation: Any, name: str) -> Array:
    """Return an entry of the observation. Raises ValueError: it is no list of finite numbers."""
    value = observation.get(name) if isinstance(observation, dict) else None
    try:
        joints = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        joints = np.zeros(0, np.float32)
    if joints.ndim != 1 or not joints.size or not np.isfinite(joints).all():
        raise ValueError(f"An observation has {name!r}, an array of one finite number for each joint.")
    return joints

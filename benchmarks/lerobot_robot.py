"""One robot with LeRobot's client, for `benchmarks.robots`: needs an interpreter with LeRobot and the client's extra.

    python benchmarks/lerobot_robot.py ADDRESS SECONDS

The robot has six joints and a camera of 240 × 320 pixels, which exist only here; all else is LeRobot's, with the shim.
It prints a line, waits for one, and runs. Then it prints, as JSON, the milliseconds from each observation that was
answered to its actions, for the first one apart, and those between actions.
"""

import json
import sys
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from lerobot.robots import Robot, RobotConfig  # type: ignore[import-not-found]
from torchserve_py_client import lerobot  # type: ignore[import-not-found]

JOINTS = [f"joint_{number}.pos" for number in range(6)]
FPS = 30


@RobotConfig.register_subclass("pretended")  # type: ignore[untyped-decorator]
@dataclass
class PretendedConfig(RobotConfig):  # type: ignore[misc]
    """The robot that exists only here."""


class Pretended(Robot):  # type: ignore[misc]
    """Does nothing with its actions but note when they came."""

    config_class, name = PretendedConfig, "pretended"
    is_connected = is_calibrated = True
    observation_features = {**dict.fromkeys(JOINTS, float), "front": (240, 320, 3)}  # noqa: RUF012
    action_features = dict.fromkeys(JOINTS, float)

    def __init__(self, config: PretendedConfig) -> None:
        super().__init__(config)
        self.acted_at: list[float] = []

    def connect(self, calibrate: bool = True) -> None:
        """There is nothing to connect to."""

    calibrate = configure = disconnect = connect

    def get_observation(self) -> dict[str, Any]:
        """Return joints that do not move, and a black image."""
        return {**dict.fromkeys(JOINTS, 0.0), "front": np.zeros((240, 320, 3), np.uint8)}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Note the time."""
        self.acted_at.append(time.perf_counter())
        return action


def main(address: str, seconds: float) -> None:
    """Run the robot for a while."""
    module: Any = lerobot.install()
    module.make_robot_from_config = Pretended
    config = module.RobotClientConfig(
        policy_type="act",
        pretrained_name_or_path="policy",
        robot=PretendedConfig(),
        actions_per_chunk=50,
        server_address=address,
        fps=FPS,
        task="wait",
    )
    client = module.RobotClient(config)
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    send, aggregate = client.send_observation, client._aggregate_action_queues

    def note_sending(observation: Any) -> Any:
        sent_at.setdefault(observation.get_timestep(), time.perf_counter())
        return send(observation)

    def note_actions(actions: list[Any], *more: Any) -> None:
        latencies.append(1000 * (time.perf_counter() - sent_at[actions[0].get_timestep()]))
        aggregate(actions, *more)

    client.send_observation, client._aggregate_action_queues = note_sending, note_actions
    print("ready", flush=True)
    sys.stdin.readline()
    if not client.start():
        raise SystemExit("LeRobot's client could not start; its log says why.")
    threading.Thread(target=client.receive_actions, daemon=True).start()
    threading.Thread(target=client.control_loop, args=("wait",), daemon=True).start()
    time.sleep(seconds)
    acted_at = client.robot.acted_at
    gaps = [1000 * (later - earlier) for earlier, later in pairwise(acted_at)]
    # For its first chunk a robot waits with others that start at this moment, and has not moved yet.
    print(json.dumps({"first": latencies[0], "latencies": latencies[1:], "gaps": gaps}))
    sys.stdout.flush()
    client.stop()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

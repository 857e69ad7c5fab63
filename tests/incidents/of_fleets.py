"""Incidents of fleets: a server that does not see what its fleet serves."""

from __future__ import annotations

from tests.e2e.running_server import RunningServer, model_folder
from tests.incidents.scenes import WELL, Scene, is_well, metric

#: A server that has not compared itself with its fleet for so long (seconds) lags: it does so each second.
_LAG = 5.0


def fleet_server_cannot_follow(scene: Scene) -> None:
    """A server does not see the folder of its fleet any more, while another one registers a model."""
    model, late = (model_folder(scene.directory, name, WELL) for name in ("m", "late"))
    shared, mounted = scene.directory / "shared", scene.directory / "mounted"
    shared.mkdir()
    mounted.symlink_to(shared)
    with (
        RunningServer({"m": model}, {"fleet_state": shared}) as first,
        RunningServer({}, {"fleet_state": mounted}) as second,
    ):
        first.wait_ready()
        second.wait_ready()
        scene.expect(is_well(second, "m"), "the second server follows")
        mounted.unlink()
        mounted.write_text("this is no folder")
        answer = first.register(late)
        scene.expect(answer.status_code == 200, answer.text)

        def is_noticed() -> bool:
            scene.lost += not is_well(second, "m")  # it goes on with what it has
            return metric(second, "ts_fleet_seconds_behind") > _LAG

        scene.detect(is_noticed, "it is shown")
        refused = second.scale("m", 2)
        scene.expect(
            (refused.status_code, refused.headers.get("ts-error-cause")) == (503, "fleet_not_told"), "a change"
        )
        mounted.unlink()
        mounted.symlink_to(shared)
        scene.heal(lambda: is_well(second, "late"), "the second server has the new model")
        scene.expect(scene.lost == 0, "each request was answered")
        scene.expect(metric(second, "ts_fleet_seconds_behind") < _LAG, "it is over")

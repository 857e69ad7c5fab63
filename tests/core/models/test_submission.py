"""How calls come to the version that runs them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.models.registries import MakeRegistry, without_workers, write_model

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.job_observer import ObservedJob
from torchserve_py.core.jobs.parts import Exceeded, JobFailed

CONFIG = "minWorkers: 1\nmaxWorkers: 1\nsequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"


class Notes:
    """An account that allows everything, and notes how calls have ended."""

    client = name = "ada"
    weight = 1.0

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def begin(self, call: Call, model: str, is_open: Callable[[str], bool]) -> Exceeded | ObservedJob:
        return ObservedJob(call.headers, None, lambda ended, last: self.ends.append(ended.told))


@pytest.mark.usefixtures("no_workers")
async def test_a_step_of_another_version_is_charged_to_its_key(make_registry: MakeRegistry, store: Path) -> None:
    registry, notes, watched = make_registry(), Notes(), list[Call]()
    for version in ("1", "2"):
        named = {"modelVersion": version, "handler": "handler.py", "configFile": "model-config.yaml"}
        folder = write_model(store / version, {"model": named})
        (folder / "model-config.yaml").write_text(CONFIG)
        await registry.register(without_workers(version, model_name="m"))
        registry.find("m", version).dispatcher.set_workers(1)  # which never comes
    registry.watch("m", lambda model, call: watched.append(call))
    sequence = SequenceRequest("s", True, False, ())
    first, other = (Call((), b"x", sequence=sequence, account=notes) for _ in range(2))
    registry.submit(registry.get("m", "1"), first)
    registry.submit(registry.get("m", "2"), other)
    with pytest.raises(JobFailed) as refused:
        await other.next()
    assert refused.value.cause is Cause.sequence_moved
    assert (notes.ends, watched) == ([Cause.sequence_moved], [first])
    first.cancel()

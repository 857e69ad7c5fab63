"""Actors of Ray: what a worker needs of its node, and calls that may block while the cluster's head does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class NodeDemand:
    """What a worker needs of its node: the options of Ray's actors with the same names."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        amounts = [f"{amount:g} {name}" for name, amount in wanted.items() if amount]
        labels = [f"label {name}={value}" for name, value in self.label_selector.items()]
        return ", ".join([*amounts, *labels]) or "nothing in particular"


def new_actor(demand: NodeDemand) -> Any:
    """Ask Ray for an actor on a node with room for a worker; it has none yet."""
    import ray

    from ts.ray_host import WorkerHost

    options: dict[str, Any] = {"num_cpus": demand.num_cpus, "num_gpus": demand.num_gpus}
    if demand.resources:
        options["resources"] = dict(demand.resources)
    if demand.label_selector:
        options["label_selector"] = dict(demand.label_selector)
    return ray.remote(WorkerHost).options(max_restarts=0, **options).remote()


def end_actor(actor: Any) -> None:
    """End an actor, unless there is none yet, and do not wait for that."""
    import ray

    if actor is not None:
        in_thread(partial(ray.kill, actor)).add_done_callback(asyncio.Future.exception)


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run in a daemon thread what blocks while the head of the cluster does not answer, which may be for ever."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(settle_with: Callable[[Any], None], result: object) -> None:
        if not outcome.done():
            settle_with(result)

    def run() -> None:
        try:
            settled: tuple[Callable[[Any], None], object] = (outcome.set_result, call())
        except Exception as error:
            settled = (outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, name="ray", daemon=True).start()
    return outcome


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray's, whose messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

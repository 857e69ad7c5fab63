"""The key of `model-config.yaml` for parallel workers: how torchrun starts their processes."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import Schema, key
from torchserve_py.base.settings.schemas.values import Nested, Text, integer

#: The key by which a model asks for processes, and the one in it that says the same as `parallelLevel`.
TORCHRUN: Final = "torchrun"
PROCESSES: Final = "torchrun.nproc-per-node"


class TorchrunConfig(Schema):
    """The `torchrun` map: how the processes of one parallel worker are launched. None = not set."""

    nnodes: Annotated[int | None, integer(1)] = key("nnodes", "number of machines")
    nproc_per_node: Annotated[int | None, integer(1)] = key(
        "nproc-per-node", "processes of one worker, one per GPU; as `parallelLevel`"
    )
    rdzv_backend: Text = key("rdzv-backend", "how the processes find each other, `c10d` by default")
    rdzv_endpoint: Text = key("rdzv-endpoint", "where the processes meet; by default a free port of this machine")
    rdzv_conf: Text = key("rdzv-conf", "no effect, as in TorchServe")
    monitor_interval: Annotated[int | None, integer(1)] = key("monitor-interval", "no effect, as in TorchServe")
    node_rank: Annotated[int | None, integer(0)] = key("node-rank", "no effect, as in TorchServe")
    omp_num_threads: Annotated[int | None, integer(1)] = key(
        "OMP_NUMBER_THREADS", "`OMP_NUM_THREADS` of the processes, by default 1"
    )


class TorchrunKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    handlers_only: ClassVar[str] = (
        "the code of the model runs in one process; parallelType: custom gives it several GPUs"
    )

    torchrun: Annotated[TorchrunConfig | None, Nested("a map of torchrun options, for example {nproc-per-node: 4}")] = (
        key("torchrun", "how the processes of a parallel worker are started", "none")
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what cannot be obeyed."""
        if self.torchrun and (self.torchrun.nnodes or 1) > 1:
            yield (
                ("torchrun.nnodes",),
                f"torchrun.nnodes is {self.torchrun.nnodes} but all processes of a worker run on the server's machine; "
                "leave it out",
            )

    def doubts(self, given: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a warning for each unknown key of the map; only the server reads this map."""
        known = TorchrunConfig.key_names()
        options = given.get("torchrun")
        for option in options if isinstance(options, Mapping) else ():
            if option not in known:
                yield f"torchrun.{option} is not known and has no effect; known are {', '.join(known)}"

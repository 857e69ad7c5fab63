"""The `ray` map of `model-config.yaml`."""

from typing import Annotated

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import ClosedSchema, key
from torchserve_py.base.settings.schemas.values import NOT_NEGATIVE, POSITIVE, TEXT, Nested


class RayConfig(ClosedSchema):
    """The `ray` map: what each process of a worker needs of its node, under the names of Ray's options."""

    num_cpus: Annotated[float, NOT_NEGATIVE] = key("num_cpus", "processors", "1", otherwise=1.0)
    num_gpus: Annotated[float, NOT_NEGATIVE] = key("num_gpus", "GPUs, or a part of one", "0", otherwise=0.0)
    resources: Annotated[dict[str, Annotated[float, POSITIVE]] | None, Nested("a map, for example {a100: 1}")] = key(
        "resources", "other resources of nodes, with amounts", "none"
    )
    label_selector: Annotated[dict[str, Annotated[str, TEXT]] | None, Nested("a map, for example {zone: a}")] = key(
        "label_selector", "labels that the node must have", "none"
    )


_RAY = Nested("a map of Ray's options, for example {num_cpus: 2, num_gpus: 0.5}")


class RayKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    ray: Annotated[RayConfig, _RAY] = key(
        "ray",
        "what a worker needs of its [Ray](kubernetes.md#ray) node",
        "one processor",
        RayConfig(),
    )

"""Functions and classes that are decorated with `ts.serve` are models."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.contracts.served_functions.functions_door import FunctionsDoor

    return [DoorOffer("inference_address", FunctionsDoor)]


PLUGIN = Plugin(name="served_functions", doors=_doors)

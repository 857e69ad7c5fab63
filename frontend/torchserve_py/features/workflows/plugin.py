"""Workflows: graphs of models behind one name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import DoorOffer, Plugin, SchemaOffer

if TYPE_CHECKING:
    from torchserve_py.settings.table import SettingsSection


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.features.workflows.workflow_doors import WorkflowInferenceDoor, WorkflowManagementDoor

    return [
        DoorOffer("inference_address", WorkflowInferenceDoor),
        DoorOffer("management_address", WorkflowManagementDoor),
    ]


def _specification() -> SchemaOffer:
    from torchserve_py.features.workflows.spec import SpecFile

    return SchemaOffer("the specification of a workflow", SpecFile)


def _settings() -> type[SettingsSection]:
    from torchserve_py.features.workflows.workflow_settings import WorkflowSettings

    return WorkflowSettings


PLUGIN = Plugin(
    name="workflows",
    needs=("archiver", "archives", "management"),
    doors=_doors,
    schemas={"workflow": _specification},
    settings=_settings,
)

"""Workflows: graphs of models behind one name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, EndpointsOffer, Plugin, SchemaOffer

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.workflows.workflow_endpoints import WorkflowInferenceEndpoints, WorkflowManagementEndpoints

    return [
        EndpointsOffer("inference_address", WorkflowInferenceEndpoints),
        EndpointsOffer("management_address", WorkflowManagementEndpoints),
    ]


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.apis.workflows.workflow_endpoints import workflows_of

    return [
        BackgroundOffer(
            "registering the first workflows", lambda context: context.shared(workflows_of).register_at_start()
        )
    ]


def _specification() -> SchemaOffer:
    from torchserve_py.apis.workflows.spec import SpecFile

    return SchemaOffer("the specification of a workflow", SpecFile)


def _settings() -> type[SettingsSection]:
    from torchserve_py.apis.workflows.workflow_settings import WorkflowSettings

    return WorkflowSettings


PLUGIN = Plugin(
    name="workflows",
    endpoints=_endpoints,
    background=_background,
    schemas={"workflow": _specification},
    settings=_settings,
)

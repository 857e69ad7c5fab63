"""The settings of workflows: where their archives are, and which the server begins with."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from torchserve_py.apis.workflows import startup_workflows
from torchserve_py.base.settings import value_kinds as kinds
from torchserve_py.base.settings.table import Effective, SettingsSection, Source, setting


class WorkflowSettings(SettingsSection):
    """The settings of workflows."""

    workflow_store: Annotated[
        Path | None, kinds.PATH, Source(flag="--workflow-store", metavar="DIR", must_exist=True)
    ] = setting(
        None,
        "directory of the workflow archives",
        "the model store",
    )
    load_workflows: Annotated[tuple[str, ...], kinds.WORDS] = setting(
        (), "workflow archives to register at start-up, or name=archive", "none"
    )

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterator[str]:
        """Yield a line for each value of ``load_workflows`` that cannot be read, or has the name of another one."""
        if (own := effective.get("load_workflows")) is None:
            return
        named: dict[str, str] = {}
        for text in own.value:
            try:
                name = startup_workflows.read(text).request.model_name
            except ValueError as error:
                yield f"{own.origin}: load_workflows = {text}: {error}"
                continue
            if name and (other := named.setdefault(name, text)) != text:
                yield f"{own.origin}: load_workflows names two workflows {name}, {other} and {text}; rename one of them"

    @classmethod
    def doubts(cls, effective: Mapping[str, Effective]) -> Iterator[str]:
        """Yield a warning if the directory does not exist."""
        if (own := effective.get("workflow_store")) is None or own.value is None or own.value.is_dir():
            return
        problem = "there is no such directory; workflows cannot be registered until there is"
        yield f"{own.origin}: workflow_store = {own.value}: {problem}"

"""How the states of a model's sequences are kept: in the memory of their worker; wings above the core do more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.base.settings.state_folders import StateFolders
from torchserve_py.core.workers.confinement import Confinement
from ts.protocol.messages import Cache

if TYPE_CHECKING:
    from torchserve_py.core.plans.effective_config import EffectiveConfig


class SequenceStates:
    """How states are kept.

    ``durable``: whether a state outlives the worker that runs its sequence; ``of_one_machine``: whether only processes
    of one machine can read it then.
    """

    durable = False
    of_one_machine = False
    #: Seconds after its last step until a stored sequence expires; None: as soon as it leaves its worker.
    expires_after: int | None = None

    def continues(self, other: SequenceStates, *, migrates: bool) -> bool:
        """Return whether a version of a model continues the sequences of one that keeps states otherwise.

        ``migrates``: its handler can make its states of those of other versions.
        """
        return False

    def prepare(self, folders: StateFolders, model_name: str, confinement: Confinement) -> None:
        """Make what workers need. Blocks. Raises InvalidModel: that is not possible."""

    def message(self, config: EffectiveConfig, model_name: str, folders: StateFolders) -> Cache | None:
        """Return what workers are told; None: nothing."""
        return None

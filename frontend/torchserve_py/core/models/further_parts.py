"""What the server gives models besides their workers, from the wings above."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from torchserve_py.base.metrics.model_metrics import ModelMetrics
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.file_function import FileFunction
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.handover.storage import Storage
from torchserve_py.core.jobs.function_call import CallModel
from torchserve_py.core.models.model import Autoscaler, WorkerRoom
from torchserve_py.core.plans.plan import Plan
from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.serving.serving import Restored, Serving
from torchserve_py.core.serving.usage import Usage
from torchserve_py.core.workers.pool import WorkerPool

#: Makes, of the label of a model version for logs, what lets the workers of a pool follow the load of a dispatcher.
MakeAutoscaler: TypeAlias = Callable[[str, PluginKeys, WorkerPool, Dispatcher, ModelMetrics], Autoscaler]


class FurtherParts(NamedTuple):
    """Makes the parts that models have besides their workers.

    Attributes:
        autoscaler: What lets the number of a model's workers follow its load.
        worker_room: What workers ask before they start; None if they always may.
        install: Installs what the workers of a model need besides the server's packages, and returns its files with
            where that is. Raises DependencyError.
        calls_of: Returns what makes, for a function of a file, that with which its model calls others; bodies have at
            most so many bytes.
        states_of: Returns how the states of the sequences of a model with these keys are kept.
        restored: Returns what a server begins with instead of `load_models`; None: with these. Blocks. Raises
            PluginUnavailable: that cannot be read.
        shared_handover: Returns where servers that run leave each other their sequences in memory; None if they do not.
    """

    autoscaler: MakeAutoscaler
    worker_room: Callable[[Settings, ServerMetrics, Usage], WorkerRoom | None]
    install: Callable[[Plan, Settings], Awaitable[ModelFiles]]
    calls_of: Callable[[Serving, int], Callable[[FileFunction], CallModel]]
    states_of: Callable[[PluginKeys], SequenceStates]
    restored: Callable[[Settings], Restored | None]
    shared_handover: Callable[[Settings], Storage | None]

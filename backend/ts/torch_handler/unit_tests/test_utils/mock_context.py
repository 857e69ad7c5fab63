"""A context for handlers' own unit tests, which need neither a server nor an archive."""

import sys
import uuid
from typing import Any

from ts.metrics.metrics_store import MetricsStore
from ts.utils.util import get_yaml_config


class MockContext:
    """What a handler's ``initialize`` and ``handle`` ask of a context; set ``explain`` to have requests ask for that.

    ``model_pt_file`` and ``model_file`` are the manifest's ``serializedFile`` and ``modelFile``, None leaves them out;
    ``gpu_id`` is the GPU to use where there is one; ``model_yaml_config_file`` is a file in ``model_dir``.
    """

    def __init__(
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = "model.py",
        gpu_id: str | None = "0",
        model_name: str = "mnist",
        model_yaml_config_file: str | None = None,
    ) -> None:
        files = {"serializedFile": model_pt_file, "modelFile": model_file}
        self.model_name = model_name
        self.manifest = {"model": {"modelName": model_name, **{key: name for key, name in files.items() if name}}}
        self.system_properties: dict[str, Any] = {"model_dir": model_dir, "limit_max_image_pixels": True}
        torch = sys.modules.get("torch")
        if gpu_id and torch is not None and torch.cuda.is_available():
            self.system_properties["gpu_id"] = gpu_id
        self.model_yaml_config: dict[str, Any] = {}
        if model_yaml_config_file:
            self.model_yaml_config = get_yaml_config(f"{model_dir}/{model_yaml_config_file}")
        self.explain = False
        self.metrics = MetricsStore(str(uuid.uuid4()), model_name)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return the header "explain" of row 0 as `explain` says; there are no other headers."""
        return str(self.explain) if (idx, key) == (0, "explain") else None

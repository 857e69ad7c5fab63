"""A Truss's ``config.yaml`` with all defaults, and this server's options beyond it.

The model gets the whole configuration as the keyword argument ``config``; the worker itself reads a few keys, whose
values the server has checked before it starts workers (`torchserve_py.contracts.truss.truss_contract`).
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ts.utils.util import get_yaml_config

_CONFIG_FILE: Final = "config.yaml"
_MODEL_CONFIG_FILE: Final = "model-config.yaml"

_DEFAULTS: Final[dict[str, Any]] = {
    "model_name": None,
    "model_metadata": {},
    "description": None,
    "examples_filename": "examples.yaml",
    "data_dir": "data",
    "external_data": None,
    "external_package_dirs": [],
    "python_version": "py313",
    "base_image": None,
    "requirements_file": None,
    "requirements": [],
    "system_packages": [],
    "environment_variables": {},
    "secrets": {},
    "resources": {
        "cpu": "1",
        "memory": "2Gi",
        "accelerator": None,
        "use_gpu": False,
        "instance_type": None,
        "node_count": None,
    },
    "runtime": {
        "predict_concurrency": 1,
        "streaming_read_timeout": 60,
        "enable_tracing_data": False,
        "enable_debug_logs": False,
        "transport": {"kind": "http", "ping_interval_seconds": None, "ping_timeout_seconds": None},
        "is_websocket_endpoint": False,
        "health_checks": {
            "restart_check_delay_seconds": None,
            "restart_threshold_seconds": None,
            "stop_traffic_threshold_seconds": None,
            "startup_threshold_seconds": None,
        },
        "oidc": {"enabled": None},
        "remote_ssh": {"enabled": False},
        "egress_restrictions": None,
        "truss_server_version_override": None,
    },
    "build": {"model_server": "TrussServer", "arguments": {}, "secret_to_path_mapping": {}, "no_cache": False},
    "build_commands": [],
    "docker_server": None,
    "model_cache": [],
    "weights": [],
    "bdn": {"mounts": [], "access": [], "hotload": {"enabled": False}},
    "trt_llm": None,
    "training_checkpoints": None,
    "bis_llm": None,
    "input_type": "Any",
    "model_framework": "custom",
    "model_type": "Model",
    "model_module_dir": "model",
    "model_class_filename": "model.py",
    "model_class_name": "Model",
    "bundled_packages_dir": "packages",
    "use_local_src": False,
    "cache_internal": [],
    "live_reload": False,
    "apply_library_patches": True,
    "spec_version": "2.0",
}
#: Sections whose own keys have defaults; in any other mapping the keys are the author's.
_SECTIONS: Final = frozenset(("resources", "runtime", "transport", "health_checks", "oidc", "remote_ssh", "build"))


def read_config(model_dir: Path) -> dict[str, Any]:
    """Read the configuration of the Truss in ``model_dir``. Raises OSError, ValueError: it cannot be read."""
    return _with_defaults(_DEFAULTS, get_yaml_config(str(model_dir / _CONFIG_FILE)))


def read_options(model_dir: Path) -> Mapping[str, Any]:
    """Return the map ``truss`` of ``model-config.yaml``, this server's options beyond Truss; empty if it is not there.

    Raises OSError, ValueError: it is unreadable.
    """
    path = model_dir / _MODEL_CONFIG_FILE
    return (get_yaml_config(str(path)).get("truss") if path.is_file() else None) or {}


def _with_defaults(defaults: Mapping[str, Any], given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return ``given`` with the missing defaults; null stands for a default that is not null itself."""
    values = copy.deepcopy(dict(defaults)) | dict(given)
    for key, default in defaults.items():
        value = values[key]
        if value is None:
            values[key] = copy.deepcopy(default)
        elif key in _SECTIONS and isinstance(value, dict):
            values[key] = _with_defaults(default, value)
    return values

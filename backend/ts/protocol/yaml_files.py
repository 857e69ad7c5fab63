"""YAML files of models; importing this costs next to nothing, since YAML is imported when a file is read."""

from typing import Any, Final

from ts.protocol.regular_files import read_regular

_MOST_BYTES: Final = 64 << 20


def get_yaml_config(yaml_file_path: str) -> dict[str, Any]:
    """Return what a YAML file holds; ``{}`` for an empty one. Raises ValueError: the file is not a YAML mapping."""
    import yaml

    text = read_regular(yaml_file_path, _MOST_BYTES)
    try:
        config = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(f"{yaml_file_path} is not valid YAML: {error}") from error
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise ValueError(f"{yaml_file_path}: expected a mapping of keys to values, got {type(config).__name__}")
    return config

"""A model for inference by DeepSpeed, as the ``deepspeed`` map of its model-config.yaml says."""

import importlib
import json
from pathlib import Path
from typing import Any

from ts.context import Context


def get_ds_engine(model: Any, ctx: Context) -> Any:
    """Return DeepSpeed's inference engine for a model.

    ``deepspeed.config`` names DeepSpeed's own configuration among the model's files; the file ``deepspeed.checkpoint``
    gets the list of the checkpoints below ``handler.model_path``. Raises ModuleNotFoundError: DeepSpeed is missing;
    ValueError: the configuration has no ``deepspeed`` map, or names a file that is not there.
    """
    options = ctx.model_yaml_config.get("deepspeed")
    if options is None:
        raise ValueError(f"{ctx.model_name}: model-config.yaml has no map deepspeed")
    try:
        deepspeed: Any = importlib.import_module("deepspeed")
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        text = "This model needs the package deepspeed, which is not installed: pip install deepspeed"
        raise ModuleNotFoundError(text, name=error.name) from None
    model_dir = Path(ctx.system_properties["model_dir"])
    model_path = ctx.model_yaml_config["handler"]["model_path"]
    config = model_dir / options["config"] if "config" in options else None
    if config is not None and not config.is_file():
        raise ValueError(f"{ctx.model_name}: deepspeed.config of model-config.yaml names {config}, which is not there")
    checkpoint = model_dir / options["checkpoint"] if "checkpoint" in options else None
    if checkpoint is not None:
        create_checkpoints_json(model_path, str(checkpoint))
    return deepspeed.init_inference(
        model,
        config=None if config is None else str(config),
        base_dir=model_path,
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def create_checkpoints_json(model_path: str, checkpoints_json: str) -> None:
    """Write the list of checkpoints (``.bin``, ``.pt``) below a folder, in the form that DeepSpeed reads."""
    found = sorted(str(path) for path in Path(model_path).rglob("*") if path.suffix in (".bin", ".pt"))
    document = {"type": "ds_model", "checkpoints": found, "version": 1.0}
    Path(checkpoints_json).write_text(json.dumps(document))

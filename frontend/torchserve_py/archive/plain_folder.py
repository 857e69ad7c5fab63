"""A model without a manifest: what its files say about it.

This is how a plain folder of source files is served without packing, and an archive that was made without the archiver.
A file is found by its name; several candidates are an error.
"""

from collections.abc import Sequence
from pathlib import Path

from torchserve_py.archive.contract import CONTRACTS, TORCHSERVE
from torchserve_py.archive.errors import InvalidArchive
from torchserve_py.archive.manifest import MANIFEST_PATH, Manifest, describe

CONFIG_FILE = "model-config.yaml"
_WEIGHT_SUFFIXES = (".pt", ".pth")


def describe_folder(
    folder: Path,
    *,
    model_name: str,
    handler: str | None = None,
    contract: str = TORCHSERVE,
    loads_weights: bool = True,
) -> Manifest:
    """The manifest of the model that the files in `folder` make.

    handler          `handler.py`, else the only `*handler*.py`; not looked for where `handler` is given.
    config file      `model-config.yaml`
    model file       `model.py`
    serialized file  `model.pt` or `model.pth`, else the only `.pt` or `.pth`
    requirements     `requirements.txt`

    Missing files are left out, and weights unless `loads_weights`. Models of other contracts than TorchServe's declare
    their other files themselves.
    Raises InvalidArchive, naming the candidates, where there are several.
    """
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    handlers, weights = [], []
    has_handler = CONTRACTS[contract].handlers
    if has_handler:
        shown = [name for name in names if not name.startswith(".")]
        handlers = [
            name for name in shown if name.endswith(".py") and "handler" in name and not name.startswith("test")
        ]
        weights = [name for name in shown if loads_weights and name.endswith(_WEIGHT_SUFFIXES)]
    preferred_weights = [f"model{suffix}" for suffix in _WEIGHT_SUFFIXES]
    return describe(
        model_name=model_name,
        handler=handler or _only("the handler", handlers, ["handler.py"], folder),
        config_file=CONFIG_FILE if CONFIG_FILE in names else None,
        model_file="model.py" if has_handler and "model.py" in names else None,
        serialized_file=_only("the weights", weights, preferred_weights, folder),
        requirements_file="requirements.txt" if "requirements.txt" in names else None,
    )


def _only(role: str, candidates: Sequence[str], preferred: Sequence[str], folder: Path) -> str | None:
    chosen = [name for name in preferred if name in candidates] or candidates
    if len(chosen) > 1:
        message = f"{folder} has no {MANIFEST_PATH}, and several files that could be {role} of the model"
        raise InvalidArchive(message, f"{', '.join(chosen)} (keep one of them, or call one {preferred[0]})")
    return chosen[0] if chosen else None

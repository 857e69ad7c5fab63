"""Imports the file with the model class, and lets it find its neighbours and its packages.

The module has the name that Truss gives it, because pickles name the module of a class: ``model/model.py`` is
``model.model``, ``model/other.py`` is ``other``. Older versions of Truss called the first ``model``; its classes are
found under that name, too. The module is known to `sys.modules` before it runs (dataclasses and pickle need that), and
both ``from model.helper import x`` and ``from . import helper`` work. Packages that a Truss brings are looked for last,
behind everything that is installed.
"""

import importlib.util
import logging
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ts.jobs.errors import LoadError
from ts.jobs.search_path import search_in

logger = logging.getLogger(__name__)

#: The arguments that a model class gets if it takes them.
CLASS_ARGUMENTS: Final = ("config", "data_dir", "secrets", "environment", "lazy_data_resolver")


def add_to_path(model_dir: Path, config: Mapping[str, Any]) -> None:
    """Look for modules in the Truss's folder, and last in its packages' folders, which need not exist."""
    search_in([str(model_dir)])
    for folder in (config["bundled_packages_dir"], *config["external_package_dirs"]):
        path = model_dir / folder
        if path.is_dir():
            sys.path.append(str(path))


def import_class(model_dir: Path, config: Mapping[str, Any]) -> type:
    """Return the model class. Raises LoadError: there is no such file or class; BaseException: the file raised it."""
    class_file, class_name = (
        Path(config["model_module_dir"], config["model_class_filename"]),
        config["model_class_name"],
    )
    logger.info("Loading the model from file %s.", class_file)
    if not (model_dir / class_file).is_file():
        raise LoadError(
            f"There is no model class file {class_file}: model_module_dir and model_class_filename in config.yaml say "
            "where it is."
        )
    module = _import(model_dir, class_file)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise LoadError(f"{class_file} has no class {class_name}; model_class_name in config.yaml says what it is.")
    return found


class _InPackage(ModuleSpec):
    """The spec of a module whose name does not say which package it is in."""

    package = ""

    @property
    def parent(self) -> str:
        return self.package


def _import(model_dir: Path, class_file: Path) -> ModuleType:
    path = model_dir / class_file
    if path.suffix != ".py":
        raise LoadError(f"{class_file} cannot be imported: it must be a Python file (.py).")
    package = ".".join(class_file.parent.parts)
    full_name = f"{package}.{path.stem}" if package else path.stem
    if package:
        _make_packages(model_dir, class_file.parent.parts)
    # A name that is taken stays what it is: the worker itself may need that module.
    is_full = class_file.parent.name == path.stem or path.stem in sys.modules
    name = full_name if is_full else path.stem
    loader = SourceFileLoader(name, str(path))
    spec = _InPackage(name, loader, origin=str(path))
    spec.package, spec.has_location = package, True
    module = importlib.util.module_from_spec(spec)
    names = {name, full_name}
    sys.modules.update(dict.fromkeys(names, module))
    try:
        loader.exec_module(module)
    except BaseException:
        for each in names:
            sys.modules.pop(each, None)
        raise
    if package == path.stem:
        _give(sys.modules[package], module)
    return module


def _give(package: ModuleType, module: ModuleType) -> None:
    """Let a package have the names of a module in it, except those that Python gives to each."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
        return getattr(module, name)

    vars(package).setdefault("__getattr__", find)


def _make_packages(model_dir: Path, names: tuple[str, ...]) -> None:
    """Make the class file's folder the package of its name, even if another package has that name."""
    folder = model_dir
    for depth, own_name in enumerate(names, start=1):
        folder /= own_name
        name = ".".join(names[:depth])
        file = folder / "__init__.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(folder)])
        else:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
        assert spec is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        if spec.loader is not None:
            spec.loader.exec_module(package)

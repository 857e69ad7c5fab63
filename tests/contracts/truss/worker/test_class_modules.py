"""The module of a model class: its name is Truss's, and pickles find it."""

import json
import sys

import pytest
from tests.contracts.truss.worker.loaded import Load, load

__all__ = ["load"]


@pytest.mark.parametrize(
    ("config", "file", "name"),
    [
        ("{model_class_filename: other_model.py}", "model__other_model", "other_model"),
        ("{model_class_filename: json.py}", "model__json", "model.json"),
        ("{model_module_dir: src/own, model_class_filename: own.py}", "src__own__own", "src.own.own"),
        ("{}", "model__model", "model.model"),
    ],
)
def test_the_module_has_the_name_that_truss_gives_it(load: Load, config: str, file: str, name: str) -> None:
    source = """
        import dataclasses
        import pickle
        import sys

        from . import helper

        @dataclasses.dataclass
        class Inner:
            value: "int"

        class Model:
            def predict(self):
                copy = pickle.loads(pickle.dumps(Inner(helper.VALUE)))
                return [Model.__module__, copy.value, sys.modules[__name__] is sys.modules[Model.__module__]]
        """
    neighbour = f"{file.rpartition('__')[0]}__helper"
    loaded = load(source, config, **{file: source, neighbour: "VALUE = 3"})
    assert loaded.predict() == [name, 3, True]
    assert "model.json" not in sys.modules or sys.modules["json"] is json


def test_pickles_find_classes_where_an_older_truss_had_them(load: Load) -> None:
    loaded = load("""
        import pickle

        class Inner:
            pass

        class Model:
            def predict(self):
                import model
                return [type(pickle.loads(b"cmodel\\nInner\\n)\\x81.")).__module__, hasattr(model, "missing")]
        """)
    assert loaded.predict() == ["model.model", False]

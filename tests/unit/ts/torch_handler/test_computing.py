"""``autocast``, ``dtype`` and ``channelsLast``: in which types and layout a model computes, and what it answers in."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

from ts.torch_handler.computing import Computing  # noqa: E402 - needs torch

CPU = torch.device("cpu")


class Seen(torch.nn.Module):
    """A convolution that keeps what it has computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3)
        self.seen: list[Any] = []

    def forward(self, images: torch.Tensor) -> dict[str, Any]:
        output = self.layer(images)
        last = torch.channels_last
        self.seen.append((output.dtype, images.is_contiguous(memory_format=last)))
        return {"out": output, "pair": (output, torch.ones(1, dtype=torch.int64)), "name": "x"}


@pytest.mark.parametrize(
    ("config", "dtype", "weights", "last"),
    [
        ({}, torch.float32, torch.float32, False),
        ({"autocast": "bfloat16"}, torch.bfloat16, torch.float32, False),
        ({"autocast": "float16"}, torch.float16, torch.float32, False),
        ({"dtype": "bfloat16"}, torch.bfloat16, torch.bfloat16, False),
        ({"channelsLast": True}, torch.float32, torch.float32, True),
        ({"autocast": "bfloat16", "channelsLast": True}, torch.bfloat16, torch.float32, True),
        ({"dtype": "float16", "channelsLast": True}, torch.float16, torch.float16, True),
    ],
)
def test_a_model_computes_as_its_configuration_says(
    config: dict[str, Any], dtype: Any, weights: Any, last: bool
) -> None:
    computing = Computing.of(config, CPU)
    model = computing.prepared(Seen())
    output = computing.run(model, torch.rand(2, 3, 8, 8))
    assert model.seen == [(dtype, last)]
    assert model.layer.weight.is_contiguous(memory_format=torch.channels_last) is last
    assert model.layer.weight.dtype == weights
    assert output["out"].dtype == output["pair"][0].dtype == torch.float32
    assert output["pair"][1].dtype == torch.int64
    assert output["name"] == "x"


def test_torchscript_computes_so_too(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(64, 64)).save(str(tmp_path / "model.pt"))
    model = torch.jit.load(str(tmp_path / "model.pt"))
    batch = torch.rand(4, 64)
    exact = Computing(CPU).run(model, batch)
    in_bfloat16 = Computing.of({"dtype": "bfloat16"}, CPU)
    for reduced in (
        Computing(CPU, torch.bfloat16).run(model, batch),
        in_bfloat16.run(in_bfloat16.prepared(model), batch),
    ):
        assert reduced.dtype == torch.float32
        assert not torch.equal(exact, reduced)
        assert torch.allclose(exact, reduced, atol=0.05)


def test_images_of_different_sizes_stay_apart() -> None:
    images = [torch.rand(3, 4, 4), torch.rand(3, 5, 5)]
    assert Computing(CPU).run(lambda each: [image.shape for image in each], images) == [(3, 4, 4), (3, 5, 5)]


@pytest.mark.parametrize("key", ["autocast", "dtype"])
def test_a_type_that_torch_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=rf"{key} in model-config\.yaml is 'int8', it must be bfloat16 or float16"):
        Computing.of({key: "int8"}, CPU)


def test_an_exported_model_keeps_its_types() -> None:
    program = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.rand(1, 2),))
    with pytest.raises(RuntimeError, match=r"dtype in model-config\.yaml cannot change an exported model"):
        Computing.of({"dtype": "float16"}, CPU).prepared(program.module())


@pytest.mark.parametrize("config", [{"autocast": "bfloat16"}, {"dtype": "float16"}, {"channelsLast": True}])
def test_a_model_that_is_no_module_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="cannot change a function, only eager, TorchScript and exported models"):
        Computing.of(config, CPU).prepared(lambda each: each)

"""Modules of PyTorch and pipelines of transformers, served as they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.contracts.served_functions.test_served_function import Call, row
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, pipeline

from ts.jobs.errors import LoadError
from ts.serve_decorator import ServeOptions


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return x * self.weight + shift


def test_the_tensors_of_a_module_are_the_parameters_of_forward() -> None:
    module = Scale()
    assert module.training
    call = Call(module)
    assert call(row(body={"x": [1.5, 2], "shift": [1, 1]})) == [[4.0, 5.0]]
    assert not module.training
    assert [each["name"] for each in call.handler.declared["inputs"]] == ["x", "shift"]
    (doubled,) = call(row(x=np.array([1.0]), shift=np.array([1.0])))
    assert doubled == [3.0]


def test_whole_numbers_are_numbers_unless_something_is_looked_up_by_them() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 2).half()
    (whole,) = Call(linear)(row(body=[1, 2, 3]))
    assert whole == Call(linear)(row(body=[1.0, 2.0, 3.0]))[0]
    words = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Linear(2, 1))
    ((first, second),) = Call(words)(row(body=[4, 4]))
    assert first == second


def test_a_module_as_it_is_has_no_batches() -> None:
    with pytest.raises(LoadError, match="Linear is served as it is; write a function with"):
        Call(torch.nn.Linear(3, 2), ServeOptions(batch_size=4))


def test_a_pipeline_takes_the_inputs_and_parameters_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=7, max_position_embeddings=16, **sizes))
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    call = Call(pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu"))
    for given in (row(body="good"), row(body={"inputs": "good"})):
        ((answer,),) = call(given)
        assert answer["label"] in ("LABEL_0", "LABEL_1")
    ((all_of_them,),) = (call(row(body={"inputs": "good", "parameters": {"top_k": None}})),)
    assert {each["label"] for each in all_of_them} == {"LABEL_0", "LABEL_1"}
    assert call.handler.declared["function"]["example"] == {"inputs": "hello"}

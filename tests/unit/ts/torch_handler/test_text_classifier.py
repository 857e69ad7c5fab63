"""The built-in text classifier: cleaning, vocabulary, answers."""

import itertools
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

#: Classes good and bad; every token adds its weight to one of them.
MODEL = """
    import torch

    class Bag(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.EmbeddingBag(5, 2, mode="sum")
            self.fc = torch.nn.Linear(2, 2, bias=False)
            with torch.no_grad():
                self.embedding.weight.copy_(torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0], [0, 5]]))
                self.fc.weight.copy_(torch.eye(2))

        def forward(self, text, offsets):
            return self.fc(self.embedding(text, offsets))
"""

VOCABULARY = {"<unk>": 0, "good": 1, "bad": 2, "not": 3, "not good": 4}


@pytest.fixture
def classifier(serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path) -> Callable[..., Any]:
    def load(vocabulary: Any = VOCABULARY, **more: Any) -> Any:
        torch.save(vocabulary, tmp_path / "source_vocab.pt")
        (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "good", "1": "bad"}))
        return serve("text_classifier", modelFile=model(MODEL), **more)

    return load


def probabilities(good: float, bad: float) -> dict[str, float]:
    good, bad = torch.softmax(torch.tensor([good, bad], dtype=torch.float32), 0).tolist()
    return {"good": good, "bad": bad}


def test_a_text_gets_the_probability_of_each_class(classifier: Callable[..., Any]) -> None:
    answers = classifier().answers(b"good good", b"bad", {"data": b"good"})

    assert [status for status, _ in answers] == [200, 200, 200]
    assert answers[0][1] == pytest.approx(probabilities(2, 0))
    assert answers[1][1] == pytest.approx(probabilities(0, 1))
    assert answers[2][1] == pytest.approx(probabilities(1, 0))


def test_two_neighbouring_tokens_count_together(classifier: Callable[..., Any]) -> None:
    [(_, answer)] = classifier().answers(b"not good")

    assert answer == pytest.approx(probabilities(1, 5))


def test_the_text_is_cleaned_before_it_is_cut_into_tokens(classifier: Callable[..., Any]) -> None:
    served = classifier()

    _, tokens = served.handler.preprocess(
        [{"body": "<p>It's a CAF\u00c9; don't &amp; won't, 'tis John's!</p>".encode()}]
    )

    words = ["it", "is", "a", "cafe", "do", "not", "will", "not", "tis", "johns"]
    assert tokens == [*words, *(" ".join(pair) for pair in itertools.pairwise(words))]
    assert served.handler.input_text.startswith("<p>It's")


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("I'd've", "I would have"),
        ("She's here", "She is here"),
        ("can't", "cannot"),
        ("y'all", "you all"),
        ("kit's", "kits"),
        ("they'll've", "they will have"),
    ],
)
def test_contractions_are_written_out(classifier: Callable[..., Any], short: str, long: str) -> None:
    assert classifier().handler._expand_contractions(short) == long


def test_rows_without_a_known_word_are_refused_and_the_others_answered(classifier: Callable[..., Any]) -> None:
    served = classifier(OrderedDict(good=1))

    answers = served.answers(b"nothing known", b"good thing", b"\xff")

    assert [status for status, _ in answers] == [400, 200, 400]
    assert answers[0][1] == "No word of the text is in the model's vocabulary."
    assert answers[1][1] == pytest.approx(probabilities(1, 0))
    assert "no text in UTF-8" in answers[2][1]
    assert served.answers(b"")[0] == (400, "No word of the text is in the model's vocabulary.")


def test_an_explanation_names_the_tokens(classifier: Callable[..., Any]) -> None:
    pytest.importorskip("captum")

    [(status, answer)] = classifier().answers(b"not good", explain=[0])

    assert status == 200
    assert answer["words"] == ["not", "good", "not good"]
    # The class "good" owes all to the first value of the embedding, 1, and nothing to the second.
    assert answer["importances"] == [pytest.approx(torch.softmax(torch.tensor([1.0, 0.0]), 0).tolist())]


def test_a_vocabulary_under_another_name_is_found(classifier: Callable[..., Any], tmp_path: Path) -> None:
    torch.save({"good": 2}, tmp_path / "words.pt")

    [(_, answer)] = classifier(sourceVocab="words.pt").answers(b"good")

    assert answer == pytest.approx(probabilities(0, 1))


class Vocabulary:
    """Any class that is no plain container."""

    def __getitem__(self, token: str) -> int:
        return len(token)


def test_a_vocabulary_with_code_needs_trust(classifier: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=r"weights_only: false(.|\n)*vocab\.get_stoi\(\)"):
        classifier(Vocabulary())

    [(_, answer)] = classifier(Vocabulary(), config="handler: {weights_only: false}").answers(b"x")
    assert answer == pytest.approx(probabilities(1, 0))


def test_a_missing_vocabulary_is_named(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    with pytest.raises(RuntimeError, match=r"does not hold the vocabulary source_vocab\.pt"):
        serve("text_classifier", modelFile=model(MODEL))

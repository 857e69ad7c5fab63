"""The built-in handler ``text_classifier``: a text to the probabilities of its classes."""

from typing import Any

import torch

from ts.handler_utils.text_utils import ngrams_iterator
from ts.handler_utils.timer import timed
from ts.torch_handler.built_in_rows import BadRowError, check_sent, row_value
from ts.torch_handler.text_handler import TextHandler
from ts.utils.util import map_class_to_label

_UNKNOWN = "<unk>"


class TextClassifier(TextHandler):
    """Serves a model called with token indexes, [tokens], and the offsets of the texts among them, [1].

    It returns logits, [1, classes]. That is the shape of a model whose first layer is an ``EmbeddingBag``. The rows of
    a batch are classified one after the other.
    """

    one_by_one = True
    ngrams = 2  # so many neighbouring tokens, and fewer, are looked up in the vocabulary together

    @timed
    def preprocess(self, data: Any) -> tuple[torch.Tensor, list[str]]:
        """Return the text of row 0 as indexes and tokens. Raises BadRowError: no text, or none in the vocabulary."""
        self.input_text = _read_text(row_value(data[0]))
        text = self._remove_html_tags(self.input_text).lower()
        text = self._remove_accented_characters(self._expand_contractions(text))
        tokens = list(ngrams_iterator(self._tokenize(self._remove_punctuation(text)), self.ngrams))
        known = [(token, index) for token in tokens if (index := self._index(token)) is not None]
        if not known:
            raise BadRowError(0, "No word of the text is in the model's vocabulary.")
        indexes = torch.tensor([index for _, index in known], dtype=torch.int64, device=self.device)
        return indexes, [token for token, _ in known]

    # Not timed: the method that it calls is.
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the logits of the text that ``preprocess`` returned."""
        indexes, _ = data
        return super().inference(indexes, self._offsets())

    @timed
    def postprocess(self, data: Any) -> list[dict[str, float]]:
        """Return a dict from class to probability."""
        return map_class_to_label(torch.nn.functional.softmax(data, dim=1).tolist(), self.mapping)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[dict[str, Any]]:
        """Return the text's tokens and what the output of the model's embedding contributes to class ``target``."""
        indexes, tokens = tensor_data
        attributions = self.lig.attribute(
            indexes, torch.zeros_like(indexes), additional_forward_args=(self._offsets(),), target=target
        )
        importances = self.summarize_attributions(attributions).tolist()
        return [{"importances": importances, "words": self.get_word_token(tokens)}]

    def _offsets(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int64, device=self.device)

    def _index(self, token: str) -> int | None:
        if isinstance(self.source_vocab, dict):
            index: int | None = self.source_vocab.get(token, self.source_vocab.get(_UNKNOWN))
            return index
        return int(self.source_vocab[token])


def _read_text(value: Any) -> str:
    check_sent(0, value)
    if isinstance(value, bytes | bytearray):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise BadRowError(0, f"The request's body is no text in UTF-8: {error}.") from error
    if not isinstance(value, str):
        raise BadRowError(0, f"The request's body is a {type(value).__name__}, not a text.")
    return value

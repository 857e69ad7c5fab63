"""The base of text handlers: the vocabulary, and the cleaning of text."""

import functools
import os
import re
import string
import unicodedata
from abc import ABC
from typing import Any

import torch

from ts.handler_utils.text_utils import get_tokenizer
from ts.torch_handler.base_handler import BaseHandler, captum_attr, import_captum_ahead
from ts.torch_handler.contractions import CONTRACTION_MAP
from ts.torch_handler.model_loading import load_pickle
from ts.utils.util import CLEANUP_REGEX

_LONG_FORMS = {short.lower(): long for short, long in CONTRACTION_MAP.items()}
_LONGEST_FIRST = sorted(map(re.escape, _LONG_FORMS), key=len, reverse=True)
_CONTRACTION = re.compile(rf"(?<!\w)(?:{'|'.join(_LONGEST_FIRST)})(?!\w)", re.IGNORECASE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextHandler(BaseHandler, ABC):
    """Loads the vocabulary that the archive holds as ``source_vocab.pt`` and offers what cleans a text."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None  # token to index: a dict, or a Vocab of torchtext
        self.tokenizer = get_tokenizer("basic_english")
        self.input_text: str | None = None  # of the last request

    def initialize(self, context: Any) -> None:
        """Load the model and its vocabulary. Raises RuntimeError: the vocabulary is missing or cannot be loaded."""
        super().initialize(context)
        self.initialized = False
        path = self.get_source_vocab_path(context)
        try:
            self.source_vocab = load_pickle(path, torch.device("cpu"), weights_only=self._weights_only())
        except (RuntimeError, ModuleNotFoundError) as error:
            raise RuntimeError(
                f"The vocabulary cannot be loaded: {error}\nA dict from token to index always can: "
                "torch.save(vocab.get_stoi(), 'source_vocab.pt') makes one of torchtext's vocabulary."
            ) from error
        import_captum_ahead()
        self.initialized = True

    def get_source_vocab_path(self, ctx: Any) -> str:
        """Return the path of the vocabulary. Raises RuntimeError: the model's folder has none."""
        name = ((self.manifest or {}).get("model") or {}).get("sourceVocab") or "source_vocab.pt"
        path = os.path.join(ctx.system_properties["model_dir"], name)  # noqa: PTH118
        if not os.path.isfile(path):  # noqa: PTH113
            raise RuntimeError(f"The archive does not hold the vocabulary {name}; add it with --extra-files.")
        return path

    @functools.cached_property
    def lig(self) -> Any:
        """Captum's ``LayerIntegratedGradients`` of the model's layer ``embedding``."""
        return captum_attr().LayerIntegratedGradients(self.model, self.model.embedding)

    def get_word_token(self, input_tokens: list[str]) -> list[str]:
        """Return the tokens without the mark that byte-pair encoders put for a space."""
        return [token.replace("Ġ", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Return attributions as a distribution over their last dimension, divided by the norm of its sums."""
        attributions = torch.nn.functional.softmax(attributions, dim=-1)
        return attributions / torch.norm(attributions.sum(dim=-1))

    def _expand_contractions(self, text: str) -> str:
        """Return the text with "don't" as "do not" and the like; other apostrophes are removed."""
        return _CONTRACTION.sub(_long_form, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")

    def _remove_html_tags(self, text: str) -> str:
        return CLEANUP_REGEX.sub("", text)

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(_NO_PUNCTUATION)

    #: TorchServe's first spelling, which handlers may use.
    _remove_puncutation = _remove_punctuation

    def _tokenize(self, text: str) -> list[str]:
        return self.tokenizer(text)


def _long_form(match: re.Match[str]) -> str:
    short = match.group()
    return short[0] + _LONG_FORMS[short.lower()][1:]

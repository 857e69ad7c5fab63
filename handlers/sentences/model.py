"""An MLServer model: how many words and letters a sentence has, at once or word by word."""

from collections.abc import AsyncIterator

import numpy as np
from fastapi import Body
from mlserver import MLModel, log
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.handlers import custom_handler
from mlserver.types import InferenceRequest, InferenceResponse


class Sentences(MLModel):
    """Counts words and letters of sentences."""

    async def load(self) -> bool:
        """Read the settings; a model that needs weights loads them here."""
        extra = self.settings.parameters.extra if self.settings.parameters else None
        self.separator = (extra or {}).get("separator")
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Return an array with a row for each sentence: words and letters. It may be called for several requests."""
        sentences = self.decode(payload.inputs[0], default_codec=StringCodec)
        counts = [self.count(sentence) for sentence in sentences]
        log(sentence_count=len(sentences))
        output = NumpyCodec.encode_output("counts", np.array(counts, dtype=np.int64).reshape(len(sentences), 2))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        """Yield a response for each word of each request, as it comes."""
        async for payload in payloads:
            for sentence in self.decode(payload.inputs[0], default_codec=StringCodec):
                for word in sentence.split(self.separator):
                    output = StringCodec.encode_output("word", [word])
                    yield InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])

    @custom_handler(rest_path="/longest-word")
    async def longest_word(self, sentence: str = Body(..., embed=True)) -> dict[str, str]:
        """Serve a path of the model's own."""
        return {"longest": max(sentence.split(self.separator), key=len)}

    def count(self, sentence: str) -> tuple[int, int]:
        """Return the words and letters of a sentence."""
        words = sentence.split(self.separator)
        return len(words), sum(map(len, words))

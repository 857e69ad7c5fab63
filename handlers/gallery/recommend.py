"""What to read next in Python's manual: a taste for each user, kept on the server, that every page read changes."""

from pydoc_data.topics import topics

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from ts import serve
from ts.service import PredictionException

FORGETS = 0.7  # how much of a taste a page leaves


@serve(store="file", example="if")
class Recommend:
    """Note that a user has read a page, and return three that are close to what this user reads."""

    def setup(self, device: str) -> None:
        model = make_pipeline(TfidfVectorizer(sublinear_tf=True), TruncatedSVD(32, random_state=0), Normalizer())
        self.names = sorted(topics)
        self.pages = dict(zip(self.names, model.fit_transform([topics[name] for name in self.names]), strict=True))

    def predict(self, page: str, state: dict) -> list[str]:
        if page not in self.pages:
            raise PredictionException(f"the manual has no page {page!r}; it has {', '.join(self.names[:5])}, …", 422)
        taste = FORGETS * np.array(state.get("taste", 0.0)) + self.pages[page]
        state["taste"] = taste.tolist()
        state["read"] = sorted({*state.get("read", []), page})
        unread = [name for name in self.names if name not in state["read"]]
        return sorted(unread, key=lambda name: -float(self.pages[name] @ taste))[:3]

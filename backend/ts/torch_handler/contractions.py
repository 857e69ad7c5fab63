"""English contractions and what they stand for."""

from __future__ import annotations

_WILL = ["I", "you", "he", "she", "it", "we", "they", "that", "there", "this", "who", "what", "how"]
_WOULD = ["I", "you", "he", "she", "it", "we", "they", "that", "there", "who"]
_HAVE = ["I", "you", "we", "they", "could", "should", "would", "might", "must", "who"]
_ARE = ["you", "we", "they", "who", "what", "there", "where", "why", "how"]
_IS = [
    "he",
    "she",
    "it",
    "that",
    "there",
    "this",
    "here",
    "who",
    "what",
    "where",
    "when",
    "why",
    "how",
    "everyone",
    "somebody",
]
_NOT = [
    "are",
    "could",
    "did",
    "does",
    "do",
    "had",
    "has",
    "have",
    "is",
    "might",
    "must",
    "need",
    "ought",
    "should",
    "was",
    "were",
    "would",
    "may",
    "dare",
]

#: Contraction to its long form, in lower case but for the pronoun I.
CONTRACTION_MAP: dict[str, str] = {
    **{f"{word}'ll": f"{word} will" for word in _WILL},
    **{f"{word}'ll've": f"{word} will have" for word in _WILL},
    **{f"{word}'d": f"{word} would" for word in _WOULD},
    **{f"{word}'d've": f"{word} would have" for word in _WOULD},
    **{f"{word}'ve": f"{word} have" for word in _HAVE},
    **{f"{word}'re": f"{word} are" for word in _ARE},
    **{f"{word}'s": f"{word} is" for word in _IS},
    **{f"{word}n't": f"{word} not" for word in _NOT},
    **{f"{word}n't've": f"{word} not have" for word in _NOT},
    "I'm": "I am",
    "ain't": "is not",
    "can't": "cannot",
    "can't've": "cannot have",
    "shan't": "shall not",
    "shan't've": "shall not have",
    "won't": "will not",
    "won't've": "will not have",
    "how'd": "how did",
    "where'd": "where did",
    "why'd": "why did",
    "to've": "to have",
    "will've": "will have",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "'cause": "because",
    "y'all": "you all",
    "y'all're": "you all are",
    "y'all've": "you all have",
    "y'all'd": "you all would",
}

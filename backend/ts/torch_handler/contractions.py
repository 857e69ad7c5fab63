"""English contractions and what they stand for."""

#: Endings, their long forms, and the words that have them.
_ENDINGS = (
    (("'ll", "'ll've"), (" will", " will have"), "I you he she it we they that there this who what how"),
    (("'d", "'d've"), (" would", " would have"), "I you he she it we they that there who"),
    (("'ve",), (" have",), "I you we they could should would might must who"),
    (("'re",), (" are",), "you we they who what there where why how"),
    (("'s",), (" is",), "he she it that there this here who what where when why how everyone somebody"),
    (
        ("n't", "n't've"),
        (" not", " not have"),
        "are could did does do had has have is might must need ought should was were would may dare",
    ),
)

#: Contraction to its long form, in lower case but for the pronoun I.
CONTRACTION_MAP: dict[str, str] = {
    **{
        word + short: word + long
        for shorts, longs, words in _ENDINGS
        for short, long in zip(shorts, longs, strict=True)
        for word in words.split()
    },
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

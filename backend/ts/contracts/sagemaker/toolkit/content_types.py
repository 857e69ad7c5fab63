"""The content types that the toolkit knows, under its names."""

from typing import Final

JSON: Final = "application/json"
CSV: Final = "text/csv"
OCTET_STREAM: Final = "application/octet-stream"
ANY: Final = "*/*"
NPY: Final = "application/x-npy"
NPZ: Final = "application/x-npz"
#: What ``input_fn`` gets as text.
UTF8_TYPES: Final = [JSON, CSV]

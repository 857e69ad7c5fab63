"""Scripts in the shapes of public ones, each with requests and the answers that SageMaker's toolkit gives."""

import base64
import io
import json
import wave
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Exchange(NamedTuple):
    """A request, and its answer. An ``answer`` of bytes is the body; anything else is what its JSON says."""

    content_type: str | None
    body: bytes
    answer: Any
    accept: str | None = None
    answer_type: str | None = "application/json"
    status: int = 200


@dataclass(frozen=True)
class Shape:
    """The files of a model, relative to its folder, and exchanges with it."""

    files: Mapping[str, str]
    exchanges: list[Exchange]
    torch_model: bool = False  # whether model.pt doubles three numbers
    needs: tuple[str, ...] = field(default=())


def script(text: str) -> dict[str, str]:
    return {"code/inference.py": text}


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (4, 2), (255, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def second_of_sound() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(16000))
    return buffer.getvalue()


JSON, CSV, NPY = "application/json", "text/csv", "application/x-npy"

#: Hugging Face's hub shape: a tokenizer and a model in a tuple, ``inputs`` in a dict.
HUGGING_FACE = """
import json
import os

import torch
from torch import nn


class Tokenizer:
    def __init__(self, words):
        self.words = words

    def __call__(self, text, return_tensors="pt", **options):
        return {"input_ids": torch.tensor([[self.words.get(each, 0) for each in text.lower().split()]])}


def model_fn(model_dir):
    with open(os.path.join(model_dir, "vocab.json")) as file:
        words = json.load(file)
    model = nn.Embedding.from_pretrained(torch.tensor([[0.0, 0.0], [0.0, 4.0], [4.0, 0.0]]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval(), Tokenizer(words)


def predict_fn(data, model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    sentences = data.pop("inputs", data)
    encoded = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        scores = model(encoded["input_ids"]).sum(1).softmax(1)
    best = int(scores.argmax())
    return [{"label": ["NEGATIVE", "POSITIVE"][best], "score": round(float(scores[0][best]), 3)}]


def input_fn(serialized, content_type):
    if content_type != "application/json":
        raise ValueError("Unsupported content type: " + content_type)
    return json.loads(serialized)


def output_fn(prediction, accept):
    return json.dumps(prediction), accept
"""

VISION = """
import io
import json
import logging

import torch
from PIL import Image

logger = logging.getLogger(__name__)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def model_fn(model_dir):
    logger.info("Loading the model.")
    model = torch.nn.AdaptiveAvgPool2d(1)
    model.to(device).eval()
    return model


def input_fn(request_body, content_type="application/x-image"):
    if content_type in ("application/x-image", "image/png"):
        image = Image.open(io.BytesIO(request_body)).convert("RGB")
        values = torch.tensor(list(image.getdata()), dtype=torch.float32).view(image.height, image.width, 3) / 255
        return values.permute(2, 0, 1).unsqueeze(0).to(device)
    raise Exception(f"Requested unsupported ContentType: {content_type}")


def predict_fn(input_object, model):
    with torch.no_grad():
        return model(input_object)


def output_fn(prediction, content_type="application/json"):
    return json.dumps({"means": prediction.flatten().tolist()}), content_type
"""

TRANSFORM_ALONE = """
import json


def model_fn(model_dir):
    return len


def transform_fn(model, payload, request_content_type, response_content_type):
    if request_content_type and request_content_type != "application/octet-stream":
        raise RuntimeError(f"Content type must be application/octet-stream. Provided: {request_content_type}")
    assert isinstance(payload, bytearray), type(payload)
    return json.dumps({"bytes": model(payload)}), "application/json"
"""

TABULAR = """
import csv
import io
import json
import os

import numpy as np


def model_fn(model_dir):
    with open(os.path.join(model_dir, "coefficients.json")) as file:
        return np.array(json.load(file))


def input_fn(input_data, content_type):
    if content_type == "text/csv":
        return np.array([[float(value) for value in row] for row in csv.reader(io.StringIO(input_data)) if row])
    raise ValueError("{} not supported by script!".format(content_type))


def predict_fn(input_data, model):
    return input_data @ model


def output_fn(prediction, accept):
    if accept == "application/json":
        return json.dumps({"instances": [{"features": row} for row in prediction.tolist()]}), accept
    if accept == "text/csv":
        return "\\n".join(str(each) for each in prediction), accept
    raise RuntimeError("{} accept type is not supported by this script.".format(accept))
"""

PANDAS = """
import io

import pandas as pd


def model_fn(model_dir):
    return {"age": 2.0, "fare": 0.5}


def input_fn(request_body, request_content_type):
    return pd.read_csv(io.StringIO(request_body))


def predict_fn(frame, model):
    return sum(frame[name] * weight for name, weight in model.items())


def output_fn(prediction, accept):
    return prediction.to_json(orient="records")
"""

JSON_LINES = """
import json


def model_fn(model_dir):
    return str.upper


def input_fn(body, content_type):
    assert content_type == "application/jsonlines"
    return [json.loads(line) for line in body.decode("utf-8").splitlines() if line]


def predict_fn(rows, model):
    return [{"id": row["id"], "text": model(row["text"])} for row in rows]


def output_fn(rows, accept):
    return "".join(json.dumps(row) + "\\n" for row in rows), "application/jsonlines"
"""

TOOLKIT_CODERS = """
from sagemaker_inference import content_types, decoder, encoder, utils


def model_fn(model_dir):
    return 10


def input_fn(input_data, content_type):
    return decoder.decode(input_data, content_type)


def predict_fn(array, factor):
    return array * factor


def output_fn(prediction, accept):
    for content_type in utils.parse_accept(accept):
        if content_type in encoder.SUPPORTED_CONTENT_TYPES:
            return encoder.encode(prediction, content_type), content_type
    return encoder.encode(prediction, content_types.JSON), content_types.JSON
"""

CONTEXT = """
import json


def model_fn(model_dir, context):
    assert context.system_properties.get("model_dir") == model_dir
    return {"device": context.system_properties.get("gpu_id")}


def input_fn(body, content_type, context):
    return {"tenant": context.get_request_header(0, "X-Tenant"), **json.loads(body)}


def predict_fn(data, model, context):
    context.set_response_header(0, "X-Request", str(bool(context.get_request_id(0))))
    return {**data, **model}


def output_fn(prediction, accept, context):
    context.set_response_content_type(0, "application/vnd.forecast+json")
    return json.dumps(prediction)
"""

#: Each function decides for itself whether it gets the context, and how is counted, not read by name.
MIXED_CONTEXT = """
def model_fn(model_dir, *rest):
    return type(rest[0]).__name__


def input_fn(body, content_type, note="none"):
    return type(note).__name__


def predict_fn(data, model):
    return [data, model]
"""

NO_MODEL_FN = """
import json


def input_fn(body, content_type):
    import torch

    return torch.tensor(json.loads(body)["values"])
"""

OWN_MODULES = {
    "code/inference.py": """
from preprocessing import normalized
from lib.labels import LABELS


def model_fn(model_dir):
    return LABELS


def predict_fn(array, labels):
    return [labels[int(each)] for each in normalized(array)]


def input_fn(body, content_type):
    return [float(each) for each in body.split(",")]
""",
    "code/preprocessing.py": "def normalized(array):\n    return [each > sum(array) / len(array) for each in array]\n",
    "code/lib/__init__.py": "",
    "code/lib/labels.py": 'LABELS = ["low", "high"]\n',
}

STATUSES = """
from sagemaker_inference import errors


def model_fn(model_dir):
    return None


def input_fn(body, content_type):
    if content_type != "application/json":
        raise errors.UnsupportedFormatError(content_type)
    if len(body) > 10:
        raise errors.BaseInferenceToolkitError(413, "at most 10 characters", "Payload too long")
    if body == "[]":
        raise errors.GenericInferenceToolkitError(400, "no rows")
    return body


def predict_fn(data, model):
    if data == '"é"':
        raise ValueError("unbekanntes Wort: é, 日本")
    raise ValueError("")
"""

TEXT = """
def model_fn(model_dir):
    return lambda text: text[::-1]


def input_fn(request_body, request_content_type):
    if request_content_type == "text/plain":
        return request_body.decode("utf-8")
    raise ValueError("Only text/plain is supported")


def predict_fn(text, model):
    return model(text)


def output_fn(prediction, response_content_type):
    return prediction.encode()
"""

SPEECH = """
import io
import wave


def model_fn(model_dir):
    return None


def input_fn(audio, content_type):
    with wave.open(io.BytesIO(audio)) as sound:
        return sound.getnframes() / sound.getframerate()


def predict_fn(seconds, model):
    return {"seconds": seconds, "text": ["hello"] * int(seconds)}


def output_fn(result, accept):
    return result
"""

LIFE = """
calls = []


def pre_model_fn(model_dir):
    calls.append("pre")


def model_fn(model_dir):
    calls.append("model")
    return calls


def model_warmup_fn(model_dir, model):
    model.append("warm")


def transform_fn(model, body, content_type, accept):
    model.append("call")
    return list(model)
"""

GENERATION = """
import json


def model_fn(model_dir):
    return lambda prompt, max_new_tokens=2, **parameters: prompt + " la" * max_new_tokens


def input_fn(body, content_type):
    return json.loads(body)


def predict_fn(data, generate):
    inputs = data.pop("inputs")
    parameters = data.pop("parameters", {})
    prompts = inputs if isinstance(inputs, list) else [inputs]
    return [{"generated_text": generate(each, **parameters)} for each in prompts]
"""

DETECTION = """
import base64
import io
import json

import numpy as np
from PIL import Image


def model_fn(model_dir):
    return lambda image: [{"box": [0, 0, *image.shape[1::-1]], "score": np.float32(0.5), "label": "red"}]


def input_fn(body, content_type):
    data = json.loads(body)
    return np.array(Image.open(io.BytesIO(base64.b64decode(data["image"]))))


def output_fn(prediction, accept):
    return json.dumps(prediction, default=float)


def predict_fn(image, model):
    return model(image)
"""

FORECAST = """
import json

import numpy as np


def model_fn(model_dir):
    return np.mean


def transform_fn(model, data, content_type, accept):
    request = json.loads(data)
    length = request["configuration"]["prediction_length"]
    means = [float(model(series["target"])) for series in request["instances"]]
    return json.dumps({"predictions": [{"mean": [mean] * length} for mean in means]}), accept
"""

RECOMMENDER = """
import json
import os


def model_fn(model_dir):
    with open(os.path.join(model_dir, "neighbours.json")) as file:
        return json.load(file)


def input_fn(body, content_type):
    return json.loads(body)["user"]


def predict_fn(user, neighbours):
    return {"user": user, "items": neighbours.get(user)}
"""

#: A network whose class is in another module, with weights in a file of torch's.
STATE_DICT = {
    "code/inference.py": """
import os

import torch
from network import Net


def model_fn(model_dir):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.DataParallel(Net())
    path = os.path.join(model_dir, "weights", "net.pth")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save(Net().state_dict(), path)
    model.module.load_state_dict(torch.load(path, map_location=device))
    return model.to(device).eval()
""",
    "code/network.py": """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(self.layer.weight, 1)
        torch.nn.init.constant_(self.layer.bias, 1)

    def forward(self, x):
        return self.layer(x.view(x.shape[0], -1))
""",
}

SEVERAL_TYPES = """
import io
import json

import numpy as np


def model_fn(model_dir):
    return lambda array: array.sum(axis=1)


def input_fn(body, content_type):
    if content_type == "application/json":
        return np.array(json.loads(body)["instances"])
    if content_type == "text/csv":
        return np.genfromtxt(io.StringIO(body), delimiter=",", ndmin=2)
    if content_type == "application/x-npy":
        return np.load(io.BytesIO(body))
    raise ValueError(f"Unsupported content type: {content_type}")


def predict_fn(array, model):
    return model(array)


def output_fn(prediction, accept):
    return json.dumps({"predictions": prediction.tolist()})
"""

SHAPES = {
    "default_handlers": Shape(
        script("import os\n"),
        [
            Exchange(JSON, b"[[1, 2, 3]]", [[2.0, 4.0, 6.0]]),
            Exchange("application/json; charset=utf-8", b"[[1, 2, 3]]", [[2.0, 4.0, 6.0]]),
            Exchange(CSV, b"1,2,3\n4,5,6.5\n", [[2.0, 4.0, 6.0], [8.0, 10.0, 13.0]]),
            Exchange(NPY, npy(np.ones((1, 3))), [[2.0, 2.0, 2.0]]),
            Exchange(JSON, b"[[1, 2, 3]]", b"2.0,4.0,6.0\n", accept=CSV, answer_type=CSV),
            Exchange(JSON, b"[[1, 2, 3]]", [[2.0, 4.0, 6.0]], accept="text/html, application/json;q=0.9"),
            Exchange("text/xml", b"<a/>", b"Content type text/xml is not supported", None, None, 415),
            Exchange(JSON, b"[[1, 2, 3]]", b"Content type text/html is not supported", "text/html", None, 406),
            Exchange(JSON, b"[[1, 2", b"The body is no array in application/json", None, None, 400),
        ],
        torch_model=True,
        needs=("torch",),
    ),
    "hugging_face": Shape(
        {**script(HUGGING_FACE), "vocab.json": '{"good": 1, "bad": 2}'},
        [
            Exchange(JSON, b'{"inputs": "a good film"}', [{"label": "POSITIVE", "score": 0.982}]),
            Exchange(JSON, b'{"inputs": "BAD"}', [{"label": "NEGATIVE", "score": 0.982}]),
            Exchange("text/plain", b"good", b"Unsupported content type: text/plain\n", None, None, 500),
        ],
        needs=("torch",),
    ),
    "vision": Shape(
        script(VISION),
        [Exchange("application/x-image", b"png", {"means": [1.0, 0.0, 0.0]})],
        needs=("torch", "PIL"),
    ),
    "transform_alone": Shape(
        script(TRANSFORM_ALONE),
        [
            Exchange("application/octet-stream", b"\x00\xff", {"bytes": 2}),
            Exchange(None, b"\x00", {"bytes": 1}),
            Exchange("image/png", b"", b"Content type must be application/octet-stream.", None, None, 500),
        ],
    ),
    "tabular": Shape(
        {**script(TABULAR), "coefficients.json": "[1, 10]"},
        [
            Exchange(CSV, b"1,2\n3,4\n", {"instances": [{"features": 21.0}, {"features": 43.0}]}),
            Exchange(CSV, b"1,2\n3,4\n", b"21.0\n43.0", accept=CSV, answer_type=CSV),
        ],
    ),
    "pandas": Shape(script(PANDAS), [Exchange(CSV, b"age,fare\n1,2\n3,4\n", [3.0, 8.0])], needs=("pandas",)),
    "json_lines": Shape(
        script(JSON_LINES),
        [
            Exchange(
                "application/jsonlines",
                b'{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n',
                b'{"id": 1, "text": "A"}\n{"id": 2, "text": "B"}\n',
                answer_type="application/jsonlines",
            )
        ],
    ),
    "toolkit_coders": Shape(
        script(TOOLKIT_CODERS),
        [
            Exchange(NPY, npy(np.arange(2.0)), npy(np.array([0.0, 10.0])), accept=NPY, answer_type=NPY),
            Exchange(CSV, b"1,2\n", b"10\n20\n", accept=CSV, answer_type=CSV),
            Exchange(JSON, b"[1, null]".replace(b"null", b"2"), [10, 20]),
        ],
    ),
    "context": Shape(
        script(CONTEXT),
        [Exchange(JSON, b'{"a": 1}', {"tenant": None, "a": 1, "device": None}, None, "application/vnd.forecast+json")],
    ),
    "mixed_context": Shape(script(MIXED_CONTEXT), [Exchange(JSON, b"0", ["Context", "Context"])]),
    "no_model_fn": Shape(
        script(NO_MODEL_FN),
        [Exchange(JSON, b'{"values": [[1, 2, 3]]}', [[2.0, 4.0, 6.0]])],
        torch_model=True,
        needs=("torch",),
    ),
    "own_modules": Shape(OWN_MODULES, [Exchange(CSV, b"1,5", ["low", "high"])]),
    "statuses": Shape(
        script(STATUSES),
        [
            Exchange(CSV, b"1", b"Content type text/csv is not supported", None, None, 415),
            Exchange(JSON, b'"0123456789"', b"at most 10 characters\n", None, None, 413),
            Exchange(JSON, b"[]", b"no rows\n", None, None, 400),
            Exchange(JSON, '"é"'.encode(), "unbekanntes Wort: é, 日本\n".encode(), None, None, 500),
            Exchange(JSON, b"1", b"Invalid Request\n", None, None, 500),
        ],
    ),
    "text": Shape(
        script(TEXT), [Exchange("text/plain", b"abc", b"cba", accept="text/plain", answer_type="text/plain")]
    ),
    "speech": Shape(script(SPEECH), [Exchange("audio/x-wav", second_of_sound(), {"seconds": 1.0, "text": ["hello"]})]),
    "life": Shape(
        script(LIFE),
        [
            Exchange(None, b"", ["pre", "model", "warm", "call"]),
            Exchange(None, b"", ["pre", "model", "warm", "call", "call"]),
        ],
    ),
    "generation": Shape(
        script(GENERATION),
        [
            Exchange(JSON, b'{"inputs": "tra", "parameters": {"max_new_tokens": 1}}', [{"generated_text": "tra la"}]),
            Exchange(JSON, b'{"inputs": ["a", "b"]}', [{"generated_text": f"{each} la la"} for each in "ab"]),
        ],
        needs=("torch",),
    ),
    "detection": Shape(
        script(DETECTION),
        [Exchange(JSON, b"png in json", [{"box": [0, 0, 4, 2], "score": 0.5, "label": "red"}])],
        needs=("PIL",),
    ),
    "forecast": Shape(
        script(FORECAST),
        [
            Exchange(
                JSON,
                b'{"instances": [{"start": "2026", "target": [1, 3]}], "configuration": {"prediction_length": 2}}',
                {"predictions": [{"mean": [2.0, 2.0]}]},
            )
        ],
    ),
    "recommender": Shape(
        {**script(RECOMMENDER), "neighbours.json": '{"ann": [3, 1]}'},
        [
            Exchange(JSON, b'{"user": "ann"}', {"user": "ann", "items": [3, 1]}),
            Exchange(JSON, b'{"user": "bob"}', {"user": "bob", "items": None}),
        ],
        needs=("torch",),
    ),
    "state_dict": Shape(STATE_DICT, [Exchange(NPY, npy(np.ones((1, 2, 1))), [[3.0]])], needs=("torch",)),
    "several_types": Shape(
        script(SEVERAL_TYPES),
        [
            Exchange(JSON, b'{"instances": [[1, 2], [3, 4]]}', {"predictions": [3, 7]}),
            Exchange(CSV, b"1,2\n", {"predictions": [3.0]}),
            Exchange(NPY, npy(np.ones((1, 2))), {"predictions": [2.0]}),
        ],
    ),
}


def body_of(exchange: Exchange) -> bytes:
    """Return a request's body; pictures are made only if Pillow is there."""
    if exchange.body == b"png":
        return png()
    if exchange.body == b"png in json":
        return json.dumps({"image": base64.b64encode(png()).decode()}).encode()
    return exchange.body

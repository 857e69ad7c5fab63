"""Scripts in the shapes of public ones."""

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
    if data == "2":
        raise Untellable
    raise ValueError("")


class Untellable(Exception):
    def __str__(self):
        return self.absent
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

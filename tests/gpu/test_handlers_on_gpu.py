"""The handlers with a memory answer on a GPU what they answer on the CPU, eager and compiled."""

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.gpu.machine import DEVICE, GPU_ID, ON_CPU
from tests.unit.handlers.conftest import HANDLERS, FakeContext, StatefulContext, load_module

from ts.metrics.metrics_cache import MetricsCache
from ts.sequence import SequenceCache

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SEQUENCE_ID = "ts_request_sequence_id"
WORDS = 40


@pytest.fixture(scope="module")
def modules() -> Iterator[Callable[[str], ModuleType]]:
    """Import a handler's module as a worker does."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:

        def load(name: str) -> ModuleType:
            patch.syspath_prepend(str((HANDLERS / name).parent))
            return load_module(HANDLERS / name)

        yield load
    for name in [name for name in set(sys.modules) - before if name.startswith("chat_") or name == "model"]:
        del sys.modules[name]


# handlers/gru_session


@pytest.fixture(scope="module")
def gru(modules: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """A function that loads handlers/gru_session on a device; it returns what runs a batch of steps."""
    folder = tmp_path_factory.mktemp("gru")
    sys.modules.pop("model", None)
    handler = modules("gru_session/gru_session_handler.py")
    modules("gru_session/make_weights.py").write_weights(folder / "weights.pt")
    shutil.copy(HANDLERS / "gru_session" / "model.py", folder)

    def load(gpu_id: int | None, **config: Any) -> Callable[[list[tuple[str, list[float]]]], list[Any]]:
        manifest = {"model": {"modelFile": "model.py", "serializedFile": "weights.pt"}}
        config = {"batchSize": 8, "maxNumSequence": 100, "sequenceBatching": True, **config}
        context = StatefulContext(config, folder, manifest)
        context.system_properties["gpu_id"] = gpu_id
        served = handler.GruSessionHandler()
        served.initialize(context)
        assert served.device.type == ("cpu" if gpu_id is None else "cuda")

        def run(steps: list[tuple[str, list[float]]]) -> list[Any]:
            return context.run(served, [({SEQUENCE_ID: name}, body) for name, body in steps])

        return run

    return load


@pytest.mark.parametrize(
    "pt2", [None, {"compile": {"enable": True}}, {"compile": {"enable": True, "mode": "reduce-overhead"}}]
)
def test_recurrent_sessions_are_those_of_the_cpu(gru: Callable[..., Any], pt2: Any) -> None:
    import torch

    if ON_CPU and pt2 is not None:
        pytest.skip("other tests compile on the CPU")
    order = random.Random(7)
    there, here = gru(None), gru(GPU_ID, **({} if pt2 is None else {"pt2": pt2}))
    if pt2 is not None:
        torch._dynamo.reset()
    names = [f"s{number}" for number in range(12)]
    for _ in range(40):
        steps = [(name, [order.uniform(-2, 2) for _ in range(4)]) for name in order.sample(names, order.randint(1, 8))]
        wanted = torch.tensor([each["output"] for each in there(steps)])
        given = torch.tensor([each["output"] for each in here(steps)])
        torch.testing.assert_close(given, wanted, rtol=1e-2, atol=5e-3)  # tensor cores round to TF32


# handlers/chat


@pytest.fixture(scope="module")
def chat(modules: Callable[[str], ModuleType]) -> ModuleType:
    pytest.importorskip("transformers")
    return modules("chat/chat_handler.py")


@pytest.fixture(scope="module")
def model_folder(modules: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of handlers/chat's script with weights that mean nothing, and exact arithmetic."""
    import torch

    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("chat")
    train = modules("chat/train.py")
    train.train(folder / "model", steps=0)
    net = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").double()
    torch.manual_seed(1)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    with torch.no_grad():  # it hardly ever says a token that is not text
        net.get_input_embeddings().weight[: train.WORDS.index("remember")] = 0.0
    net.save_pretrained(folder / "model")
    return folder


class Conversations:
    """Plays the server's part for handlers/chat on a device: all requests of a round run together."""

    def __init__(self, chat: ModuleType, folder: Path, gpu_id: int | None, **config: Any) -> None:
        whole = {"continuousBatching": True, "sequenceBatching": True, "batchSize": 16, "maxNumSequence": 99}
        self.context = FakeContext(whole | {"handler": {"max_tokens": 8} | config}, folder)
        self.context.system_properties["gpu_id"] = gpu_id
        self.context.metrics = MetricsCache("model")
        self.context.metrics.request_ids = {}
        self.handler = chat.ChatHandler()
        self.handler.initialize(self.context)
        self.context.rebuild = self.handler.rebuild
        SequenceCache(self.context)

    def ask(self, bodies: dict[str, Any]) -> dict[str, Any]:
        """Return the answers to one request of each of these sequences."""
        context, waiting, answers = self.context, dict(bodies), {}
        while set(answers) != set(bodies):
            names = [name for name in bodies if name not in answers]
            context.next_batch([(f"{name}-{id(bodies)}", {SEQUENCE_ID: name}) for name in names])
            context.sequence_cache.run(set(names))
            context.row_values = [{"body": waiting.pop(name)} if name in waiting else {} for name in names]
            results = self.handler.handle(list(context.row_values), context)
            for idx, name in enumerate(names):
                assert context.request_processor[idx].error is None
                if context.stopping_criteria[idx](results[idx]) is not False:
                    answers[name] = results[idx]
        return answers


def _texts(answers: dict[str, Any]) -> dict[str, str]:
    return {name: answer["text"] for name, answer in answers.items()}


def test_conversations_are_those_of_the_cpu(chat: ModuleType, model_folder: Path) -> None:
    there = Conversations(chat, model_folder, None, kv_bytes=4_000_000)
    here = Conversations(chat, model_folder, GPU_ID, kv_bytes=150_000, prefill_tokens=7)  # few fit at once
    assert here.handler.decoder.model.device.type == ("cpu" if ON_CPU else "cuda")
    for turn in ("remember cat=red", "recall cat", "remember dog=blue", "recall dog"):
        bodies = {
            f"s{number}": {"message": turn, "temperature": 0.9} | ({"seed": number} if "cat=" in turn else {})
            for number in range(4)
        }
        assert _texts(here.ask(bodies)) == _texts(there.ask(bodies))


def test_a_chat_in_bfloat16_takes_what_memory_there_is(chat: ModuleType, model_folder: Path, only_cuda: None) -> None:
    import torch

    here = Conversations(chat, model_folder, GPU_ID, dtype="bfloat16", kv_bytes=1 << 28)
    assert here.handler.decoder.model.dtype == torch.bfloat16
    answers = here.ask({f"s{number}": {"message": "remember cat=red"} for number in range(8)})
    assert len(set(_texts(answers).values())) == 1, "equal requests have equal answers"


def test_logits_are_those_of_the_cpu(modules: Callable[[str], ModuleType]) -> None:
    import torch

    transformers = pytest.importorskip("transformers")
    decoders = modules("chat/chat_decoder.py")
    sizes = {"vocab_size": WORDS, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, **shape, num_key_value_heads=2, max_position_embeddings=512)
    torch.manual_seed(0)
    there = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    for parameter in there.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    here = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval().to(DEVICE)
    here.load_state_dict(there.state_dict())
    probe = decoders.Decoder(here, most_bytes=1 << 20, most_host_bytes=0, most_prompt=1)
    room = 320 * probe.layout.token_bytes
    decoder = decoders.Decoder(here, most_bytes=room, most_host_bytes=room, most_prompt=11)
    order = random.Random(2)
    live = {decoders.Reading([order.randrange(WORDS) for _ in range(length)]): 6 for length in (3, 40, 17, 90, 5)}
    while live:
        for reading, logits in decoder.step(list(live)).items():
            with torch.inference_mode():
                wanted = there(input_ids=torch.tensor([reading.tokens]), use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits.cpu(), wanted, rtol=1e-5, atol=1e-6)
            reading.tokens.append(int(logits.argmax()))
            live[reading] -= 1
            if not live[reading]:
                del live[reading]
                decoder.keep(reading)

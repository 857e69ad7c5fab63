"""A folder with handlers/chat and a small model whose tokens are bytes, which answers by a script."""

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.e2e.running_server import HANDLERS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    batchSize: 16
    continuousBatching: true
    sequenceBatching: true
    sequenceMaxIdleMSec: 600000
    maxNumSequence: 10000
    openai: true
    handler:
      max_tokens: 400
      kv_bytes: 60000000
"""
#: A conversation as Qwen's models have it, with their calls of tools, and thoughts that later questions leave behind.
TEMPLATE = """\
{%- set question = namespace(place=0) %}{% for message in messages %}{% if message.role == 'user' %}\
{% set question.place = loop.index0 %}{% endif %}{% endfor %}{% if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Return a call within <tool_call></tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' or not loop.first %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and loop.index0 > question.place %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""


def make_folder(folder: Path) -> Path:
    """Write the model and return its folder."""
    chat = folder / "chat"
    shutil.copytree(HANDLERS / "chat", chat, ignore=shutil.ignore_patterns("model", "__pycache__", "model-config.yaml"))
    (chat / "chat_handler.py").rename(chat / "chat_base.py")
    shutil.copy(Path(__file__).with_name("script.py"), chat / "chat_handler.py")
    (chat / "model-config.yaml").write_text(textwrap.dedent(CONFIG))
    words = byte_tokenizer()
    words.add_tokens(["<think>", "</think>"])
    words.save_pretrained(chat / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16384,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(chat / "model")
    return chat


def byte_tokenizer(specials: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are bytes, with further special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", *specials],
        chat_template=TEMPLATE,
    )

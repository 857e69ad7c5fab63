"""Stands in for vLLM's module of this name."""

from vllm.utils import FlexibleArgumentParser


def make_arg_parser(parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
    parser.add_argument("--model")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--lora-modules", nargs="+")
    parser.add_argument("--chat-template")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--download-dir")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    return parser

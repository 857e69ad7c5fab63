"""Stands in for vLLM's module of this name."""

import argparse


class FlexibleArgumentParser(argparse.ArgumentParser):
    pass

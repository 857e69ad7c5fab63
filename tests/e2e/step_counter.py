"""A handler that counts the steps of each sequence in `context.state`."""

from typing import Final

HANDLER: Final = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        for row in range(len(data)):
            context.state[row] = context.state.get(row, 0) + 1
        return [str(context.state[row]) for row in range(len(data))]
"""

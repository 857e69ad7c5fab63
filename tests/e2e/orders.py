"""A stateless handler that does what a request's text says; the answer is the text."""

from tests.e2e.gate import WAITING

#: ``wait NAME`` waits at the gate NAME in the model's folder; ``stream NAME`` does after it has sent a first part.
#: ``sleep SECONDS``, ``print TEXT`` to both outputs, ``exhaust`` runs out of memory, ``exit CODE`` ends the process,
#: ``fork`` leaves a child that holds all that is open, ``fork away`` one that has left the worker's process group too.
#: Anything else does nothing.
HANDLER = (
    WAITING
    + """
import sys

from ts.handler_utils.utils import send_intermediate_predict_response


class OrderHandler:
    def initialize(self, context):
        self.directory = context.system_properties["model_dir"]

    def handle(self, data, context):
        return [self.obey(row["body"], context) for row in data]

    def obey(self, text, context):
        order, _, argument = text.partition(" ")
        if order == "wait":
            wait_for(f"{self.directory}/{argument}")
        elif order == "stream":
            send_intermediate_predict_response(["first"], context.request_ids, "Intermediate", 200, context)
            wait_for(f"{self.directory}/{argument}")
        elif order == "sleep":
            time.sleep(float(argument))
        elif order == "print":
            print(f"{argument} to stdout")
            print(f"{argument} to stderr", file=sys.stderr)
        elif order == "exhaust":
            raise MemoryError
        elif order == "exit":
            os._exit(int(argument))
        elif order == "fork":
            child = os.fork()
            if child == 0:
                if text.endswith("away"):
                    os.setsid()
                time.sleep(600)
                os._exit(0)
            return str(child)
        return text
"""
)

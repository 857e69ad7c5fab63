"""A stateful handler that shows what its worker knows of a sequence: it answers with all that it was sent."""

from pathlib import Path

from tests.e2e.gate import WAITING
from tests.e2e.running_server import eventually, model_folder

#: A request's text is kept; the answer is every text of the sequence so far, with commas between.
#: ``end`` ends the sequence, ``wait NAME`` waits at the gate NAME in the model's folder, ``crash`` ends the process.
#: ``pid`` is not kept; the answer is the process id of the worker.
HANDLER = (
    WAITING
    + """
class Recorder:
    def initialize(self, context):
        self.directory = context.system_properties["model_dir"]
        self.sent = {}

    def handle(self, data, context):
        return [self.answer(index, row["body"], context) for index, row in enumerate(data)]

    def answer(self, index, text, context):
        if text == "pid":
            return str(os.getpid())
        sequence_id = context.get_sequence_id(index)
        sent = self.sent.setdefault(sequence_id, [])
        sent.append(text)
        if text == "end":
            context.set_response_header(index, context.header_key_sequence_end, sequence_id)
        elif text.startswith("wait "):
            wait_for(f"{self.directory}/{text.removeprefix('wait ')}")
        elif text == "crash":
            os._exit(3)
        return ",".join(sent)

    def on_sequence_end(self, sequence_id, reason):
        self.sent.pop(sequence_id, None)
        with open(f"{self.directory}/ended", "a") as file:
            file.write(f"{sequence_id} {reason}\\n")
"""
)


def recorder(directory: Path, name: str, config: str) -> Path:
    """Write a model folder with the recorder and sequences that stay open unless ``config`` says otherwise."""
    defaults = "sequenceBatching: true\n"
    if "sequenceMaxIdleMSec" not in config:
        defaults += "sequenceMaxIdleMSec: 600000\n"
    return model_folder(directory, name, HANDLER, defaults + config)


def ended(folder: Path) -> dict[str, list[str]]:
    """Return the reasons that the handler in ``folder`` was told of, by sequence id."""
    file = folder / "ended"
    reasons: dict[str, list[str]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        sequence_id, reason = line.split()
        reasons.setdefault(sequence_id, []).append(reason)
    return reasons


def wait_until_ended(folder: Path, sequence_id: str, reason: str) -> None:
    """Return when the handler has been told that the sequence is over; once, for that reason."""
    reasons = eventually(lambda: ended(folder).get(sequence_id), f"the handler hears of the end of {sequence_id}")
    assert reasons == [reason]

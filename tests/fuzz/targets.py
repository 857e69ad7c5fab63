"""What is fuzzed: functions that read bytes of strangers. Each takes any bytes and raises nothing, or has a defect.

A target catches the errors that its reader documents, and asserts what must hold of what the reader returns. `TARGETS`
has inputs to start from beside each; what fuzzing has found is in the folder `findings`, one file for each.
"""

import asyncio
import contextlib
import gzip
import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from tests.net.http1.parsed_twice import parse, parse_alike
from tests.net.http2 import conformance as calls
from tests.net.http2.in_memory import InMemory
from tests.sequences.steps.test_portable import SOUND, written
from tests.tools.replay.recorded import step
from tests.tools.replay.test_hostile_journals import PROTOCOLS, check_stays

from torchserve_py.apis.workflows.errors import WorkflowError
from torchserve_py.apis.workflows.spec import read_spec
from torchserve_py.base.metrics.metrics_plan import MetricsConfigError
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.model_spec import parse_model_specs
from torchserve_py.base.settings.properties import PropertiesError, parse_properties
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.contracts.mlserver import mlserver_contract as mlserver
from torchserve_py.contracts.truss import truss_contract as truss
from torchserve_py.core.archive import unpack
from torchserve_py.core.archive.errors import ArchiveError
from torchserve_py.core.archive.manifest import parse as parse_manifest
from torchserve_py.core.archive.model_files import open_model, outline
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig, read_model_config
from torchserve_py.endpoints.requests import split_path
from torchserve_py.fleet.saved_models.snapshot_file import parse_snapshot
from torchserve_py.net.http2 import frames as http2
from torchserve_py.net.http2.abuse_allowance import AbuseAllowance
from torchserve_py.net.http2.frame_reader import FrameReader
from torchserve_py.net.http2.grpc_messages import BadGrpcMessage, MessageLimit, MessageReader
from torchserve_py.net.http2.header_decoder import HeaderDecoder
from torchserve_py.net.request_budget import RequestBudget
from torchserve_py.ops.metrics.metrics_file import read_metrics_config
from torchserve_py.tools.journal.read_journal import JournalReader, JournalUnreadable
from torchserve_py.tools.journal.sealed_lines import Sealer
from torchserve_py.tools.replay.answer_documents import NotComparable, recorded_documents
from torchserve_py.tools.replay.recorded_outcomes import as_answered
from torchserve_py.tools.replay.recorded_paths import NotReplayable
from torchserve_py.tools.replay.replay_requests import request_of
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest
from ts.apis.open_inference.receive import receive
from ts.apis.open_inference.tensors import numpy_of
from ts.apis.open_inference.types import InferenceResponse
from ts.contracts.forms.form_bodies import parse_form
from ts.jobs.errors import RowFailure
from ts.protocol.frames import FrameBuffer, FrameError, encode
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, InferRow
from ts.sequences.steps.record import Damaged
from ts.sequences.steps.stores.portable import pack_sequence, read_sequences

Target = Callable[[bytes], None]

_WORKPLACE = Path(tempfile.mkdtemp(prefix="ts-fuzz-"))


def remove_workplace() -> None:
    """Delete the files that targets have written."""
    shutil.rmtree(_WORKPLACE, ignore_errors=True)


def _file(name: str, data: bytes) -> Path:
    path = _WORKPLACE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def frames(data: bytes) -> None:
    """The worker's and the frontend's frame decoder; the first byte says in which pieces the rest arrives."""
    buffer = FrameBuffer(1 << 16)
    piece = 1 + (data[0] if data else 0)
    try:
        for start in range(1, len(data), piece):
            part = data[start : start + piece]
            buffer.writable()[: len(part)] = part
            buffer.received(len(part))
            for message in buffer.messages():
                assert isinstance(message[0], str)
    except FrameError:
        pass


def http2_frames(data: bytes) -> None:
    """What a gRPC client sends, up to the head of a call; the first byte says in which pieces it arrives."""
    decoder = HeaderDecoder()
    taken: list[bytes] = []
    handlers = {kind: lambda flags, stream, payload: taken.append(payload) for kind in range(10)}
    handlers[http2.HEADERS] = lambda flags, stream, block: [decoder.decode(block)]  # type: ignore[assignment]
    handlers[http2.SETTINGS] = lambda flags, stream, payload: http2.parse_settings(payload)  # type: ignore[assignment]
    reader = FrameReader(handlers, AbuseAllowance(), lambda error: None)
    piece = 1 + (data[0] if data else 0)
    sent = http2.PREFACE + http2.settings({}) + data[1:]
    try:
        for start in range(0, len(sent), piece):
            reader.feed(sent[start : start + piece])
    except (http2.ConnectionFailed, http2.StreamFailed):
        pass


def http2_connection(data: bytes) -> None:
    """Frames of a gRPC client, with calls that are served; the first byte says in which pieces they arrive."""
    asyncio.run(_converse(data[1:], 1 + 8 * (data[0] if data else 0)))


async def _converse(data: bytes, piece: int) -> None:
    server = InMemory(budget=1 << 16, unread=1 << 15)
    for start in range(0, len(data), piece):
        server.send(data[start : start + piece])
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    server.transport.frames()
    await server.end()  # nothing is held then


def grpc_messages(data: bytes) -> None:
    """Length-prefixed gRPC messages, plain and compressed."""
    reader = MessageReader(MessageLimit(1 << 16, ""), RequestBudget(1 << 15))
    try:
        for start in range(1, len(data), 7):
            assert all(len(message) <= 1 << 16 for message in reader.feed(data[start : start + 7]))
    except BadGrpcMessage:
        pass


def archive(data: bytes) -> None:
    """A model archive of any form: it is opened, or refused and nothing is left behind."""
    path = _file("archive/m.mar", data)
    try:
        with mock.patch.multiple(unpack, MAX_BYTES=1 << 20, MAX_FILES=100):
            files = open_model(path, _WORKPLACE)
    except ArchiveError:
        left = [*(_WORKPLACE / "models").glob("*")] if (_WORKPLACE / "models").exists() else []
        assert not left, left
    else:
        assert files.unpacked_dir is not None
        inside = files.unpacked_dir.resolve()
        assert all(each.resolve().is_relative_to(inside) and not each.is_symlink() for each in inside.rglob("*"))
        files.remove()
    try:
        with outline(path, url="m.mar"):
            pass
    except ArchiveError:
        pass


def tar(data: bytes) -> None:
    """The inside of a gzip tar, which coverage guidance does not reach through the compression."""
    archive(gzip.compress(data, 1, mtime=0))


def manifest(data: bytes) -> None:
    """MANIFEST.json."""
    try:
        parsed = parse_manifest(data)
    except ArchiveError:
        return
    assert isinstance(parsed.model_version, str)
    parsed.to_json()


def properties(data: bytes) -> None:
    """Java properties."""
    try:
        entries = parse_properties(data.decode("utf-8", "replace"))
    except PropertiesError as error:
        assert error.line >= 1
    else:
        assert all(entry.line >= 1 for entry in entries)


def config_properties(data: bytes) -> None:
    """config.properties as a whole: mistakes are collected, never raised."""
    path = _file("config/config.properties", data)
    Resolution(parse_flags(["--ts-config", str(path), "--model-store", str(path.parent)]), {}, path.parent)


def snapshot(data: bytes) -> None:
    """The snapshot of a configuration."""
    try:
        parse_snapshot(data.decode("utf-8", "replace"))
    except ValueError:
        pass


def model_specs(data: bytes) -> None:
    """--models and load_models."""
    try:
        parse_model_specs(data.decode("utf-8", "replace"))
    except ValueError:
        pass


def model_config(data: bytes) -> None:
    """model-config.yaml."""
    try:
        read_model_config(_file("model-config.yaml", data))
    except InvalidModelConfig:
        pass


def truss_config(data: bytes) -> None:
    """A Truss's config.yaml."""
    _file("truss/model/model.py", b"class Model: pass")
    folder = _file("truss/config.yaml", data).parent
    try:
        truss.configure(folder, ModelConfig())
    except InvalidModelConfig:
        pass


def mlserver_settings(data: bytes) -> None:
    """MLServer's model-settings.json."""
    folder = _file("mlserver/model-settings.json", data).parent
    try:
        mlserver.configure(folder, ModelConfig())
    except InvalidModelConfig:
        pass


def metrics_config(data: bytes) -> None:
    """metrics.yaml."""
    try:
        read_metrics_config(_file("metrics.yaml", data))
    except MetricsConfigError:
        pass


def workflow_spec(data: bytes) -> None:
    """The specification of a workflow."""
    try:
        read_spec(_file("workflow.yaml", data))
    except WorkflowError:
        pass


def form(data: bytes) -> None:
    """A form: the first line is the content type, the rest is the body."""
    content_type, _, body = data.partition(b"\n")
    try:
        for name, type_, value in parse_form(content_type, body):
            assert (type(name), type(type_), type(value)) == (str, str, bytes)
    except RowFailure as failure:
        assert failure.status == 400


def path(data: bytes) -> None:
    """The target of an HTTP request."""
    target = data.decode("utf-8", "surrogateescape")
    assert all(isinstance(segment, str) for segment in split_path(target))


def http1_requests(data: bytes) -> None:
    """What an HTTP client sends: read as aiohttp would, and alike in any pieces; the first byte says in which."""
    piece = 1 + (data[0] if data else 0)
    sent = data[1:]
    parse_alike(sent)
    whole, pieces = parse(sent), parse(*(sent[start : start + piece] for start in range(0, len(sent), piece)))
    assert [(each.head.raw_headers, each.body) for each in whole.requests] == [
        (each.head.raw_headers, each.body) for each in pieces.requests
    ]
    assert (whole.error, whole.rest) == (pieces.error, pieces.rest)


def open_inference_rest(data: bytes) -> None:
    """An Open Inference request over REST; its first line is the length of the JSON in front of binary tensors."""
    length, _, body = data.partition(b"\n")
    headers = [(b"inference-header-content-length", length)] if length else []
    _open_inference(_row(headers, body, OPEN_INFERENCE_REST))


def open_inference_grpc(data: bytes) -> None:
    """A serialized ModelInferRequest."""
    _open_inference(_row([], data, OPEN_INFERENCE_GRPC))


def _row(headers: list[tuple[bytes, bytes]], body: bytes, protocol: str) -> InferRow:
    return InferRow("job", [*headers, (":endpoint", "infer")], None, body, protocol, more_input=False)


def _open_inference(row: InferRow) -> None:
    try:
        received = receive(row)
        for tensor in received.request.inputs:
            numpy_of(tensor)
        response = InferenceResponse("m", "1", None, {}, list(received.request.inputs))
        received.encode(response)
    except RowFailure as failure:
        assert 400 <= failure.status < 600


def _zip(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def _tar(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return out.getvalue()


_MANIFEST = json.dumps({"runtime": "python", "model": {"modelName": "m", "handler": "h.py", "modelVersion": "1.0"}})
_MEMBERS = (("MAR-INF/MANIFEST.json", _MANIFEST.encode()), ("h.py", b"def handle(data, context): return data\n"))
_JSON = b'{"id":"1","inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}],"outputs":[{"name":"x"}]}'
_BINARY = (
    b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT32","parameters":{"binary_data_size":4}}]}\x01\x00\x00\x00'
)
_GRPC = ModelInferRequest(
    model_name="m",
    inputs=[{"name": "x", "datatype": "INT32", "shape": [2], "contents": {"int_contents": [1, 2]}}],
    outputs=[{"name": "x"}],
).SerializeToString()
_PART = (
    b'multipart/form-data; boundary=b\n--b\r\nContent-Disposition: form-data; name="a"; filename="f"\r\n'
    b"Content-Type: text/plain\r\n\r\nvalue\r\n--b--\r\n"
)
_REQUEST = (
    b"POST /predictions/m HTTP/1.1\r\nHost: h\r\nUser-Agent: a\r\nConnection: keep-alive\r\nContent-Type: a/b\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)

_PACKED = gzip.compress(bytes(300), 1, mtime=0)
_BOMB = b"\1\0\0\0" + bytes((len(_PACKED),)) + _PACKED


#: Name to the target and what to start from.
def sequence_import(data: bytes) -> None:
    """A file with stored sequences: each is sound, or what is wrong with it is named."""
    try:
        found = list(read_sequences(io.BytesIO(data)))
    except Damaged as damage:
        found = [damage]
    for each in found:
        if isinstance(each, Damaged):
            assert str(each)
        else:
            pack_sequence(each)


def journal(data: bytes) -> None:
    """A file of a journal: each line is a record or is counted, and of a record a request is made or refused."""
    try:
        reader = JournalReader([_file("journal/j.jsonl", data)], bytes(32) if data.startswith(b'{"salt"') else None)
    except JournalUnreadable:
        return
    for place in reader.places:
        record = reader.read(place)
        with contextlib.suppress(NotReplayable):
            check_stays(request_of(record, None, None if record["sequence"] is None else "replay-1"), record["model"])
        with contextlib.suppress(NotComparable):
            recorded_documents(as_answered(record))
    reader.close()


TARGETS: dict[str, tuple[Target, list[bytes]]] = {
    "sequence_import": (sequence_import, [written(SOUND)]),
    "journal": (
        journal,
        [
            *(
                json.dumps(step(1, "s", protocol=each, path="/a/b?c", answer="1")).encode() + b"\n"
                for each in PROTOCOLS
            ),
            Sealer(bytes(32)).first_line + b'{"n": 0, "sealed": "AAAA"}\n',
        ],
    ),
    "frames": (frames, [b"\x05" + b"".join(map(bytes, encode(["pong", 7, {"a": [b"b", None, 1.5]}])))]),
    "http2_frames": (http2_frames, [b"\xff" + http2.header(3, http2.HEADERS, 5, 1) + b"\x83\x86\x84"]),
    "http2_connection": (
        http2_connection,
        [
            b"\xff" + calls.CALL,
            b"\1" + calls.OPEN + http2.window_update(1, 9) + calls.data(payload=b"\0\0\0\0\0", flags=1),
            b"\xff" + http2.settings({4: 1}) + calls.OPEN + calls.data() + http2.settings({4: 9}) + calls.PING,
            b"\xff" + calls.headers(calls.block(*calls.headers_for("Many"))) + calls.data() + http2.rst_stream(1, 8),
            b"\xff" + calls.headers(calls.ECHO + calls.literal("grpc-encoding", "gzip")) + calls.data(payload=_BOMB),
        ],
    ),
    "grpc_messages": (grpc_messages, [b"\x00\x00\x00\x00\x00\x02ab", b"\x01\x01" + gzip.compress(b"", 1, mtime=0)]),
    "archive": (archive, [_zip(*_MEMBERS), gzip.compress(_tar(("m/h.py", b"x")), 1, mtime=0)]),
    "tar": (tar, [_tar(*(("m/" + name, content) for name, content in _MEMBERS))]),
    "manifest": (manifest, [_MANIFEST.encode()]),
    "properties": (properties, [b"a=b\n# c\nd : e\\\n  f\nu=\\u0041\\t"]),
    "config_properties": (
        config_properties,
        [b"job_queue_size=5\ninference_address=http://127.0.0.1:8080\nmodels={}\n"],
    ),
    "snapshot": (snapshot, [b'{"name":"a","modelCount":1,"created":1,"models":{"m":{"1.0":{"marName":"m.mar"}}}}']),
    "model_specs": (model_specs, [b"all", b"a=b.mar,c.mar,d=https://h/x.mar?a=1,2"]),
    "model_config": (
        model_config,
        [b"batchSize: 4\nmaxBatchDelay: 100\nsequenceBatching: true\nsequenceMaxIdleMSec: 60000\nhandler: {a: [1]}\n"],
    ),
    "truss_config": (
        truss_config,
        [b"model_name: m\nresources: {accelerator: A10G:2}\nruntime: {predict_concurrency: 4}"],
    ),
    "mlserver_settings": (mlserver_settings, [b'{"name":"m","implementation":"a.B","parameters":{"version":"1"}}']),
    "metrics_config": (metrics_config, [b"ts_metrics:\n  counter:\n    - {name: A, unit: ms, dimensions: [Level]}\n"]),
    "workflow_spec": (workflow_spec, [b"models:\n  m: {url: m.mar, batch-size: 4}\ndag:\n  pre: [m]\n"]),
    "form": (form, [_PART, b"application/x-www-form-urlencoded\na=1&b=%20+&c"]),
    "path": (path, [b"/predictions/noop/1.0?a=%20", b"http://h/predictions/%65cho/"]),
    "http1_requests": (
        http1_requests,
        [
            b"\x00" + _REQUEST,
            b"\x02" + _REQUEST * 2,
            b"\x10POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nab\r\n0\r\nX: y\r\n\r\n",
            b"\x00GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x80",
        ],
    ),
    "open_inference_rest": (open_inference_rest, [b"\n" + _JSON, b"%d\n" % (len(_BINARY) - 4) + _BINARY]),
    "open_inference_grpc": (
        open_inference_grpc,
        [_GRPC],
    ),
}

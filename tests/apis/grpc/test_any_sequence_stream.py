"""`StreamPredictions2`, whatever requests there are, and however long their answers take."""

import asyncio
import json
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.apis.grpc.models import data, registry_of, request, stateful_model
from tests.endpoints.fake_serving import FakeModel
from tests.endpoints.fakes import make_settings
from tests.examples import examples

from torchserve_py.apis.grpc.torchserve_inference import InferenceService
from torchserve_py.base.causes import Cause
from torchserve_py.net.http2.rpc import EOF


class Conversation:
    """A client without a network: what the server's side of a call sees of it."""

    credential = seconds_left = None
    metadata = ()
    peer = "ipv4:127.0.0.1:5"

    def __init__(self, requests):
        self.requests = deque(requests)
        self.answers = []
        self._unread = 0

    async def read(self):
        await asyncio.sleep(0)
        return self.requests.popleft() if self.requests else EOF

    async def room(self):
        while self._unread:
            await asyncio.sleep(0)
            self._unread = 0

    def send(self, answer):
        assert not self._unread, "each message waits until there is room"
        self._unread += 1
        self.answers.append(answer)


class Slow(FakeModel):
    """A stateful model that takes as many turns of the loop for a request as it says, and refuses some.

    Attributes:
        waiting: How many requests of a sequence have no answer yet; never more than its queue takes.
    """

    def __init__(self, queue_size):
        super().__init__(stateful=True)
        self.config = stateful_model(queue_size=queue_size).config
        self.behave = self.take
        self.order = {}
        self.waiting = {}

    def take(self, call):
        sequence_id = call.sequence_id
        self.waiting[sequence_id] = self.waiting.get(sequence_id, 0) + 1
        assert self.waiting[sequence_id] <= self.config.max_sequence_job_queue_size
        turns, parts, fails = json.loads(data(call))
        # As a scheduler does: one after the other within a sequence.
        before = self.order.get(sequence_id)
        self.order[sequence_id] = asyncio.ensure_future(self.answer(call, before, turns, parts, fails))

    async def answer(self, call, before, turns, parts, fails):
        if before is not None:
            await before
        for _ in range(turns):
            await asyncio.sleep(0)
        self.waiting[call.sequence_id] -= 1
        if fails:
            call.fail(Cause.worker_died)
            return
        for _ in range(parts):
            call.part(data(call), more=True)
            await asyncio.sleep(0)
        call.part(data(call))


REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=90)


@settings(max_examples=examples(60))
@given(sent=REQUESTS, queue_size=st.integers(1, 3))
def test_whatever_happens_each_request_is_answered_once_in_the_order_of_its_sequence(
    sent, queue_size, tmp_path_factory
):
    async def run():
        model = Slow(queue_size)
        requests = [request(each[0], data=json.dumps(each[1:]).encode()) for each in sent]
        context = Conversation(requests)
        service = InferenceService(make_settings(tmp_path_factory.getbasetemp()), registry_of(model), set())
        async with asyncio.timeout(60):
            await service.stream_predictions_2(None, context)
        for sequence_id in "abc":
            expected = []
            for name, turns, parts, fails in sent:
                if name == sequence_id:
                    body = json.dumps([turns, parts, fails]).encode()
                    expected += [(b"", True)] if fails else [(body, False)] * (parts + 1)
            got = [
                (answer.prediction, answer.HasField("status"))
                for answer in context.answers
                if answer.sequence_id == sequence_id
            ]
            assert got == expected

    asyncio.run(run())

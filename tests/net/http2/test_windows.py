"""What calls of one connection may send at a time."""

import struct

from tests.net.http2.raw_client import RawClient, frame, headers_for

from torchserve_py.net.http2 import frames


async def test_calls_share_the_window_of_their_connection(client: RawClient) -> None:
    """One with a very long answer does not keep the others waiting until it has ended."""
    calls, window = (1, 3, 5), frames.DEFAULT_WINDOW
    message = struct.pack(">BI", 0, 1_000_000) + bytes(1_000_000)
    client.begin(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    for stream_id in calls:
        pieces = [message[start : start + 16_384] for start in range(0, len(message), 16_384)]
        client.send(client.request(stream_id, headers=headers_for("Echo")))
        client.send(*(frame(frames.DATA, 0, stream_id, piece) for piece in pieces))
        client.send(frame(frames.DATA, frames.END_STREAM, stream_id))
    for _ in range(2):  # the answers are there after the second
        await client.answers_pings()
    client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 24}))
    served = []
    for _ in range(2 * len(calls)):
        size = 0
        while size < window:
            _, stream_id, payload = await client.until(frames.DATA)
            size += len(payload)
        served.append(stream_id)
        client.send(frames.window_update(0, size))
    assert served == [*calls, *calls]

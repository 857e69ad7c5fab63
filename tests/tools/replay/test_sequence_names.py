"""Which names of a replayed sequence stand for which recorded ones."""

from torchserve_py.tools.replay.sequence_names import SequenceNames

OURS, THEIRS = "0" * 47, "f" * 47


def test_ids_that_the_server_made_are_paired_in_their_order() -> None:
    names = SequenceNames("s", "replay-1")
    names.learn(f'{{"id": "resp_{OURS}1", "output": [{{"id": "msg_{OURS}2"}}]}}'.encode(), b"")
    assert names.in_request(f"/v1/responses/resp_{OURS}1") == f"/v1/responses/resp_{OURS}1"
    names.learn(
        f'{{"id": "resp_{OURS}1", "output": [{{"id": "msg_{OURS}2"}}]}}'.encode(),
        f'{{"id": "resp_{THEIRS}1", "output": [{{"id": "msg_{THEIRS}2"}}]}}'.encode(),
    )
    assert names.in_request(f"/v1/responses/resp_{OURS}1") == f"/v1/responses/resp_{THEIRS}1"
    later = {"previous_response_id": f"resp_{THEIRS}1", "of": ["replay-1", b"replay-1", f"msg_{THEIRS}2"], "n": 1}
    assert names.in_answer(later) == {
        "previous_response_id": f"resp_{OURS}1",
        "of": ["s", b"s", f"msg_{OURS}2"],
        "n": 1,
    }
    # An answer to a later request names what is known, and something new.
    names.learn(f"resp_{OURS}1 resp_{OURS}3".encode(), f"resp_{THEIRS}3 resp_{THEIRS}1".encode())
    assert names.in_request(f"resp_{OURS}3") == f"resp_{THEIRS}3"

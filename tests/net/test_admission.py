"""How many connections there may be: of one listener, of one client, of the whole process."""

import pytest

from torchserve_py.net.admission import (
    PROBES,
    Admission,
    ConnectionBudget,
    ConnectionPlace,
    NoPlace,
    client_at,
    client_of,
)


def admitted(admission: Admission, client: str | None = None) -> ConnectionPlace:
    place = admission.enter(None if client is None else (client, 1))
    assert isinstance(place, ConnectionPlace)
    return place


def refused(admission: Admission, client: str | None = None) -> str:
    refused = admission.enter(None if client is None else (client, 1))
    assert isinstance(refused, NoPlace)
    return refused.message


def test_clients_are_counted_one_by_one() -> None:
    admission = Admission(ConnectionBudget(100), 100, 1)
    place = admitted(admission, "10.0.0.1")
    admitted(admission, "10.0.0.2")
    for _ in range(3):
        admitted(admission)  # of this machine's Unix socket
    assert "Your address has 1 connections" in refused(admission, "10.0.0.1")
    place.leave()
    place.leave()
    admitted(admission, "10.0.0.1")
    assert refused(admission, "10.0.0.1")


def test_who_was_refused_makes_no_room_by_leaving() -> None:
    admission = Admission(ConnectionBudget(100), 2, 2)
    first = admitted(admission, "10.0.0.1")
    for _ in range(10):
        admitted(admission, "10.0.0.1").leave()
    second = admitted(admission, "10.0.0.1")
    assert refused(admission, "10.0.0.1")
    assert refused(admission, "10.0.0.2")
    first.leave()
    assert isinstance(admission.enter(("10.0.0.2", 1)), ConnectionPlace)
    second.leave()


def test_an_ipv6_network_is_one_client() -> None:
    admission = Admission(ConnectionBudget(100), 100, 1)
    admitted(admission, "2001:db8::1")
    assert refused(admission, "2001:db8::2")
    admitted(admission, "2001:db8:0:1::1")
    admitted(admission, "::ffff:10.0.0.1")
    admitted(admission, "::ffff:10.0.0.2")


def test_a_client_has_one_name_on_all_its_connections() -> None:
    assert client_of(("10.0.0.1", 1)) == client_of(("10.0.0.1", 2)) == client_at("10.0.0.1") == "10.0.0.1"
    assert client_of(("fe80::1%eth0", 1, 0, 2)) == client_at("fe80::2") == "fe80::/64"
    assert client_at("::ffff:10.0.0.1") == client_of(("::ffff:10.0.0.1", 1, 0, 0)) == "10.0.0.1"
    assert client_of("/run/a-socket") is None


def test_all_listeners_share_what_the_process_has_and_operators_have_a_reserve() -> None:
    budget = ConnectionBudget(32)
    one, other = Admission(budget, 100), Admission(budget, 100)
    operators = Admission(budget, 100, is_reserved=True)
    places = [admitted(each) for each in (one, other) for _ in range(15)]
    assert "file descriptors" in refused(one)
    assert "file descriptors" in refused(other)
    admitted(operators)
    admitted(operators)
    assert refused(operators)
    places[0].leave()
    assert refused(other)  # the reserve is not for everybody
    admitted(operators)


def test_a_quarter_of_the_file_descriptors_is_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1000, 1000))
    assert ConnectionBudget.of_process().total == 750


def test_a_full_listener_has_a_few_places_for_probes_and_the_oldest_makes_room() -> None:
    admission = Admission(ConnectionBudget(100), 1)
    held = admitted(admission)
    refused = admission.enter(None)
    assert isinstance(refused, NoPlace)
    places = [admission.enter_for_probe(refused) for _ in range(PROBES)]
    given_up = list[ConnectionPlace]()
    for each in places:
        each.give_up = lambda each=each: given_up.append(each)
    places[1].leave()
    admission.enter_for_probe(refused)
    assert given_up == []
    last = admission.enter_for_probe(refused)
    assert given_up == [places[0]]
    places[0].leave()
    last.leave()
    assert (admission.open, last.refused) == (1, "The server holds 1 connections, which is its limit.")
    held.leave()
    assert isinstance(admission.enter(None), ConnectionPlace)

"""What is said of weights in the settings, and which requests stay with one version."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.job_observer import Account
from torchserve_py.core.models.traffic import Traffic
from torchserve_py.versions.traffic.stickiness import STICKY_BY
from torchserve_py.versions.traffic.traffic_settings import ModelWeights, read_weights


@dataclass
class Key:
    """The account of a key."""

    client: str
    weight: float = 1.0
    begin: None = None


def request(user: str = "", key: str = "", address: str = "") -> Call:
    headers = [(b"X-User-Id", user.encode())] if user else []
    account: Account | None = Key(key) if key else None  # type: ignore[assignment]
    return Call(headers, b"", by_default=True, client=address, account=account)


@pytest.mark.parametrize(
    ("kind", "same", "other"),
    [
        ("user", [request("ada", "k", "a"), request("ada", "l", "b")], request(key="k", address="a")),
        ("key", [request("ada", "k", "a"), request("bob", "k", "b")], request("ada", address="a")),
        ("client", [request("ada", "k", "a"), request("bob", "k", "b")], request("ada")),
        ("client", [request("ada", "", "a"), request("bob", "", "a")], request("ada")),
    ],
)
def test_what_requests_have_in_common(kind: str, same: list[Call], other: Call) -> None:
    traffic, by = Traffic("m", {"1": 50, "2": 50}), STICKY_BY[kind]
    assert len({traffic.version_for(each, by) for each in same for _ in range(20)}) == 1
    assert {traffic.version_for(other, by) for _ in range(200)} == {"1", "2"}


def test_weights_are_read_and_written_again() -> None:
    text = "m=1.0:90,2.0:10,other model=1:100"
    read = read_weights(text)
    assert read == (ModelWeights("m", {"1.0": 90, "2.0": 10}), ModelWeights("other model", {"1": 100}))
    assert ",".join(map(str, read)) == text
    assert read_weights(" m = 1.0 : 90 , 2.0 : 10 ,") == read[:1]
    assert read_weights("") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("m=1:90,2:20", "the weights of m add up to 110, not to 100"),
        ("m=1:90,2", "2 has no weight"),
        ("m=1:90,2:x", "the weight of version 2 of m is x, not 0 to 100"),
        ("m=1:-5,2:105", "the weight of version 1 of m is -5, not 0 to 100"),
        ("m=1:50,1:50", "version 1 of m is named twice"),
        ("m=1:100,m=2:100", "model m is named twice"),
        ("1:100", "1:100 stands before the name of a model"),
        ("m=", " has no weight"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, problem: str) -> None:
    resolution = Resolution(parse_flags(["--model-store", str(tmp_path), "--traffic", text]), {}, tmp_path)
    (error,) = resolution.errors
    assert problem in error
    assert f"--traffic {text}: " in error
    assert "MODEL=VERSION:PERCENT" in error


def test_weights_in_two_places_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "config.properties").write_text(
        'models={"m": {"1": {"trafficWeight": 90}}, "n": {"1": {"batchSize": 2}}}\nmodel_store=.\n'
    )
    resolution = Resolution(parse_flags(["--traffic", "m=1:100,n=1:100"]), {}, tmp_path)
    assert resolution.errors == [
        "Invalid configuration: model m has weights in two places, flag --traffic: traffic, and config.properties:1:"
        " trafficWeight in models; keep one of them"
    ]


def test_weights_of_a_snapshot_do_not_count_for_other_models(tmp_path: Path) -> None:
    saved = '{"models": {"m": {"1": {"marName": "m"}}}}'
    for name in ("m", "n"):
        (tmp_path / name).mkdir()
    (tmp_path / "saved.cfg").write_text(f"model_store=.\ntraffic=m=1:100\nmodel_snapshot={saved}\n")
    for flags, weights in (
        ((), "m=1:100"),
        (("--models", "n"), ""),
        (("--models", "n", "--traffic", "n=1:100"), "n=1:100"),
    ):
        resolution = Resolution(parse_flags(["--ts-config", "saved.cfg", *flags]), {}, tmp_path)
        assert not resolution.errors
        assert ",".join(map(str, resolution.effective["traffic"].value)) == weights
        told = "flag --models says which models are loaded, so the weights of saved.cfg:2 do not count"
        assert (told in resolution.warnings) == (not weights)
    # A file without a snapshot is the operator's own.
    (tmp_path / "own.cfg").write_text("model_store=.\ntraffic=m=1:100\n")
    own = Resolution(parse_flags(["--ts-config", "own.cfg", "--models", "m"]), {}, tmp_path)
    assert own.effective["traffic"].value

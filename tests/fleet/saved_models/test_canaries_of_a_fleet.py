"""The weights of a canary on all servers of a fleet, whatever becomes of the one that judges it."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.fleet.saved_models.worlds import Server, States

from torchserve_py.fleet.saved_models.fleet_state import FleetState
from torchserve_py.versions.traffic import canaries
from torchserve_py.versions.traffic.canaries import Canaries
from torchserve_py.versions.traffic.canary import CanaryRules
from torchserve_py.versions.traffic.shadows import Shadows

BOTH = {"1": 95, "2": 5}


class CutOff(States):
    """The same states as others see, unless they are cut off."""

    def __init__(self, states: States) -> None:
        self.is_cut = False
        super().__init__()
        self._states = states
        self.fails = lambda: self.is_cut

    @property
    def state(self) -> FleetState:  # type: ignore[override]
        return self._states.state

    @state.setter
    def state(self, state: FleetState) -> None:
        if hasattr(self, "_states"):
            self._states.state = state


class Fleet:
    """Two servers with versions 1 and 2 of model ``m``; the clock is turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_000.0
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        monkeypatch.setattr(canaries, "time", clock)
        self.states = States()
        self.cut_off = CutOff(self.states)
        self.servers = [Server(self.states), Server(self.cut_off)]
        self.canaries = [canaries_of(each) for each in self.servers]

    async def begin(self) -> None:
        """Begin a canary at the first server."""
        await self.pass_time(1)
        for version in "12":
            await self.servers[0].calls.register({"url": f"m-{version}.mar", "initial_workers": 1})
        await self.pass_time(20)
        await self.canaries[0].begin("m", CanaryRules(version="2"))
        await self.pass_time(2)

    async def pass_time(self, seconds: int, living: tuple[int, ...] = (0, 1)) -> None:
        """Let some servers look at the state of their fleet, and at canaries, every ten seconds."""
        for _ in range(0, seconds, 10):
            self.now += 10
            for index in living:
                await self.servers[index].look(10)
                await self.canaries[index].look(self.now)

    def weights(self) -> list[dict[str, int]]:
        return [each.models.weights("m") for each in self.servers]

    def decisions(self, server: int) -> list[str]:
        return [each["decision"] for each in self.canaries[server].about("m").get("decisions", ())]


def canaries_of(server: Server) -> Canaries:
    models: Any = server.models
    return Canaries(models, server.calls, Shadows(models))


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    made = Fleet(monkeypatch)
    await made.begin()
    assert made.weights() == [BOTH, BOTH]
    return made


async def test_weights_stay_while_somebody_judges_them(fleet: Fleet) -> None:
    number = fleet.states.state.number
    await fleet.pass_time(3_600)
    assert fleet.weights() == [BOTH, BOTH]
    assert fleet.decisions(0) == ["begun"]
    assert fleet.states.state.number - number <= 3_600 / 240  # a state per renewal, not one per look


async def test_weights_end_when_the_server_that_judges_them_does_not_return(fleet: Fleet) -> None:
    await fleet.pass_time(300, living=(1,))
    assert fleet.weights()[1] == BOTH
    await fleet.pass_time(330, living=(1,))
    assert fleet.weights()[1] == {}
    assert fleet.states.state.weights("m") == {}
    (decision,) = fleet.canaries[1].about("m")["decisions"]
    assert (decision["version"], decision["decision"]) == ("2", "rolled back")
    assert decision["why"] == "nobody has judged it for 10 minutes"
    await fleet.pass_time(30)  # it returns after all
    assert fleet.weights() == [{}, {}]
    assert fleet.decisions(0)[-1] == "called off"


async def test_a_server_that_is_cut_off_ends_the_weights_for_itself_alone(fleet: Fleet) -> None:
    fleet.cut_off.is_cut = True
    await fleet.pass_time(700)
    assert fleet.weights() == [BOTH, {}]
    fleet.cut_off.is_cut = False
    await fleet.pass_time(60)
    assert fleet.weights() == [BOTH, BOTH]
    assert fleet.decisions(0) == ["begun"]


async def test_a_rollout_may_take_longer_than_the_weights_last(fleet: Fleet) -> None:
    until = fleet.servers[0].models.weights_until("m")
    fleet.canaries[0].hold("m")
    with fleet.servers[0].calls.holding("m"):
        fleet.servers[0].models.set_weights("m", {"1": 50, "2": 50})  # its places are shared out meanwhile
        await fleet.pass_time(1_200)
        assert fleet.weights() == [{"1": 50, "2": 50}, BOTH]
        fleet.servers[0].models.set_weights("m", BOTH, until=until)  # it stops
    fleet.canaries[0].go_on("m")
    await fleet.pass_time(1_200)
    assert fleet.weights() == [BOTH, BOTH]
    assert fleet.decisions(0) == ["begun"]

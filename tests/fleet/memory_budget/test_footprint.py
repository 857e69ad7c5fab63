"""What the next worker of a model will take."""

from torchserve_py.fleet.memory_budget.footprint import HOST, WORKER_ITSELF, Footprint, gpu


def test_without_a_measurement_the_files_count_and_a_worker_without_a_model() -> None:
    footprint = Footprint(None)
    footprint.files = 1000
    assert footprint.forecast(HOST, decides=True) == 1000 + WORKER_ITSELF
    assert footprint.forecast(gpu(0), decides=True) == 1000


def test_what_is_declared_counts_before_the_files() -> None:
    footprint = Footprint(5000)
    footprint.files = 1000
    assert footprint.forecast(gpu(1), decides=True) == 5000
    assert footprint.forecast(HOST, decides=False) == 1000 + WORKER_ITSELF


def test_a_measured_peak_counts_before_all() -> None:
    footprint = Footprint(5000)
    footprint.begin()
    for size in (100, 700, 300):
        footprint.note({HOST: size})
    assert footprint.forecast(HOST, decides=True) == 700


def test_the_latest_five_workers_count() -> None:
    footprint = Footprint(None)
    for size in (900, 100, 100, 200, 100):
        footprint.begin()
        footprint.note({HOST: size})
    assert footprint.forecast(HOST, decides=True) == 900
    footprint.begin()
    footprint.note({HOST: 100})
    assert footprint.forecast(HOST, decides=True) == 200


def test_at_least_it_takes_what_loading_took_or_what_is_declared() -> None:
    footprint = Footprint(5000)
    assert footprint.least(HOST, decides=True) == 5000
    assert footprint.least(HOST, decides=False) == 0
    footprint.begin()
    footprint.note({HOST: 9000})  # a large request
    footprint.loading = {HOST: 300}
    assert footprint.least(HOST, decides=True) == 300
    assert footprint.forecast(HOST, decides=True) == 9000


def test_a_worker_that_was_not_measured_yet_changes_nothing() -> None:
    footprint = Footprint(None)
    footprint.begin()
    footprint.note({HOST: 300})
    footprint.begin()
    assert footprint.forecast(HOST, decides=True) == 300


def test_what_a_worker_has_while_it_loads_says_nothing_of_the_next_one_unless_it_is_more_than_expected() -> None:
    footprint = Footprint(None)
    footprint.begin()
    footprint.note({HOST: 100}, is_loading=True)
    assert footprint.forecast(HOST, decides=True) == WORKER_ITSELF
    footprint.note({HOST: WORKER_ITSELF + 1}, is_loading=True)
    assert footprint.forecast(HOST, decides=True) == WORKER_ITSELF + 1

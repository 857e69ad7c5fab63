"""The key `warmup`: what fits the batches and the files of a model."""

from pathlib import Path

from torchserve_py.contracts.warm_up.warm_up_keys import WarmUpKeys


def test_a_warm_up_batch_is_no_larger_than_batches_are(tmp_path: Path) -> None:
    (tmp_path / "sample.json").write_text("{}")
    keys = WarmUpKeys.model_validate({"warmup": [{"file": "sample.json", "rows": 5}]})
    assert list(keys.unfit(4, tmp_path)) == ["warmup[0].rows is 5 but the batch size is 4; it must be at most that"]
    assert list(keys.unfit(5, tmp_path)) == []
    assert keys.for_worker(5)[0]["rows"] == 5


def test_files_are_in_the_folder_of_the_model(tmp_path: Path) -> None:
    keys = WarmUpKeys.model_validate({"warmup": [{"file": "sample.json"}]})
    assert list(keys.unfit(4, tmp_path)) == ["warmup names files that are not there: sample.json"]


def test_a_batch_is_full_unless_the_key_says_otherwise() -> None:
    assert WarmUpKeys.model_validate({"warmup": [{"file": "sample.json"}]}).for_worker(4)[0]["rows"] == 4


def test_without_requests_there_is_nothing_to_prepare() -> None:
    assert WarmUpKeys.model_validate({"warmup": []}).for_worker(4) is None

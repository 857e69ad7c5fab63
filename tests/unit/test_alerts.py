"""What can go wrong raises an alert: every cause and every series of the server is in a rule, or here with a reason."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

ROOT = Path(__file__).parents[2]

_LIMIT: Final = (
    "a limit that the operator has set for a key; ts_key_refusals_total counts them, and the console shows who"
)
_CLIENT: Final = "the client's defect, or a normal end; its share is on the board"
_OPERATOR: Final = "the answer to an operator's own call, who sees it"
_MEASURE: Final = "says how much is done, not whether it goes wrong"
_BOARD: Final = "a capacity, shown on the boards; what follows from too little of it has alerts"
CAUSES_WITHOUT: Final = {
    **dict.fromkeys(("rate_limited", "too_many_tokens", "too_many_sequences", "too_many_at_once"), _LIMIT),
    **dict.fromkeys(("sequence_expired", "sequence_ended", "invalid_request", "not_found"), _CLIENT),
    **dict.fromkeys(("rollout_under_way", "rollout_stopped", "model_api_disabled", "fleet_not_told"), _OPERATOR),
    "draining": "a server that is stopped says so; that it is gone has alerts",
    "interrupted": "counted in the last second of a server, which is rarely scraped",
    "unregistered": "the operator has unregistered the model",
    "too_many_connections": "ConnectionsRefused, which counts connections and not answers",
    "too_many_bytes": "an answer before a model is known; HostMemoryFull tells first",
    "deadline_missed": "DeadlinesMissed, which counts late answers as well",
    "model_not_loaded": "serve --watch, for a developer who sees the message",
}
SERIES_WITHOUT: Final = {
    **dict.fromkeys(
        (
            *("ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds"),
            *("ts_handler_seconds", "ts_request_seconds", "ts_time_to_first_part_seconds", "ts_batch_size"),
            *("ts_time_between_parts_seconds", "ts_scaling_total", "ts_model_loads_total", "ts_model_wake_seconds"),
            *("ts_sequences_migrated_total", "ts_sequences_forked_total", "ts_sequences_rewound_total"),
            *("ts_sequences_imported_total", "ts_shadow_seconds_total", "ts_journal_records_total"),
            *("ts_key_requests_total", "ts_key_tokens_total", "ts_key_worker_seconds_total", "ts_fleet_state"),
            *("ts_deadline_lateness_seconds", "ts_guaranteed_sessions"),
            *("ts_model_evictions_total", "ts_model_sleeps_total", "ts_memory_room_seconds"),
        ),
        _MEASURE,
    ),
    **dict.fromkeys(
        (
            *("ts_queue_depth", "ts_open_sequences", "ts_worker_gpu_memory_bytes", "ts_memory_budget_bytes"),
            "ts_guaranteed_share",
            *("ts_memory_budget_used_bytes", "ts_sequence_store_bytes", "ts_sequence_store_sequences"),
        ),
        _BOARD,
    ),
    "ts_key_refusals_total": _LIMIT,
    "ts_sequences_moved_total": _MEASURE,
    "ts_sequence_moves_refused_total": "what is lost with its worker raises SequencesLost",
    "ts_sequences_given_up_total": "the log warns of each; the folder that two servers could not use is told before",
    "ts_sequences_forgotten_total": "the log warns of it; only very late copies of first steps are concerned",
    "ts_model_misses_total": "requests that wait for a load; those that cannot raise ModelsDoNotFit",
}


def expressions() -> str:
    """Return all expressions of the rules."""
    groups = [
        group
        for name in ("alerts.yaml", "recording-rules.yaml")
        for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / name).read_text())["groups"]
    ]
    return "\n".join(rule["expr"] for group in groups for rule in group["rules"])


def documented_causes() -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


def documented_series() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| (?:counter|gauge|histogram) \|", text, re.MULTILINE)
    return {name for names in rows for name in re.findall(r"`(ts_\w+)`", names)}


def alerted_causes() -> set[str]:
    selected = re.findall(r'cause=~?"([^"]+)"', expressions())
    return {cause for each in selected for cause in each.split("|")}


@pytest.mark.parametrize("cause", documented_causes())
def test_a_cause_is_in_a_rule_or_has_a_reason(cause: str) -> None:
    assert (cause in alerted_causes()) is not (cause in CAUSES_WITHOUT)


def test_rules_name_no_cause_that_there_is_not() -> None:
    assert alerted_causes() - set(documented_causes()) == {"cancelled"}
    assert set(CAUSES_WITHOUT) <= set(documented_causes())


@pytest.mark.parametrize("series", sorted(documented_series()))
def test_a_series_is_in_a_rule_or_has_a_reason(series: str) -> None:
    in_rules = re.search(rf"\b{series}(?:_bucket|_sum|_count)?\b", expressions()) is not None
    assert in_rules or series in SERIES_WITHOUT


def test_every_reason_is_for_a_series_that_there_is() -> None:
    assert set(SERIES_WITHOUT) <= documented_series()


def test_every_alert_has_a_place_in_the_documents() -> None:
    documents = (ROOT / "docs" / "dashboards.md").read_text()
    (group,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, f'<a id="{anchor}"></a>' in documents) == ("docs/dashboards.md", True), rule["alert"]


@pytest.mark.parametrize("name", ["alerts.yaml", "recording-rules.yaml"])
def test_the_chart_has_the_same_rules(name: str) -> None:
    deploy = ROOT / "deploy"
    assert (deploy / "chart" / "rules" / name).read_text() == (deploy / "prometheus" / name).read_text()

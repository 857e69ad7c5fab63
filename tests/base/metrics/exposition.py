"""The metrics of a server, and what a scrape gets, read with Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from torchserve_py.base.metrics.metrics_plan import MetricsPlan
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.ops.metrics.custom_metrics import CustomMetrics
from torchserve_py.ops.metrics.metric_log import metric_lines

HOST = "box"


def server_metrics(plan: MetricsPlan | None = None) -> ServerMetrics:
    """The metrics of a server of this name."""
    return ServerMetrics(HOST, plan or MetricsPlan(), metric_lines, CustomMetrics)


def exposed(metrics: ServerMetrics, names: set[str] | None = None) -> bytes:
    """What a scrape gets."""
    return "".join(metrics.expose(names)).encode()


def scrape(metrics: ServerMetrics, names: set[str] | None = None) -> dict[str, float]:
    """Sample (name and labels, sorted, without the host's name) -> value. Fails on a sample that is there twice."""
    found: dict[str, float] = {}
    text = exposed(metrics, names).decode()
    # The parser gives counters the suffix that the next format asks for: the names are read from the text.
    shown = [line.split("{")[0] for line in text.splitlines() if not line.startswith("#")]
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert len(shown) == len(samples)
    for name, sample in zip(shown, samples, strict=True):
        assert sample.name in (name, f"{name}_total")
        labels = sorted((key, value) for key, value in sample.labels.items() if key.lower() != "hostname")
        assert {value for key, value in sample.labels.items() if key.lower() == "hostname"} == {HOST}
        key = name + "".join(f" {label}={value}" for label, value in labels)
        assert key not in found, key
        found[key] = sample.value
    return found


def documented(metrics: ServerMetrics) -> dict[str, tuple[str, str]]:
    """Family -> type and HELP text."""
    kinds: dict[str, str] = {}
    texts: dict[str, str] = {}
    for line in exposed(metrics).decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif line.startswith("# HELP "):
            _, _, name, text = line.split(" ", 3)
            texts[name] = text
    assert kinds.keys() == texts.keys()
    return {name: (kinds[name], texts[name]) for name in kinds}

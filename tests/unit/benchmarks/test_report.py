"""The comparison's arithmetic and its report: ratios go by round, goals by direction, and the page says both."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.report import as_text, write_markdown
from benchmarks.results import FigureResult, Results


def figure(
    ours: list[float], theirs: list[float] | None, *, goal: float, higher: bool = True, alone: bool = False
) -> FigureResult:
    values = {"torchserve-py": ours} | ({"TorchServe 0.12": theirs} if theirs is not None else {})
    return FigureResult(
        "name", None if alone else "TorchServe 0.12", "A <figure>", "req/s", goal, higher, alone, values
    )


def test_the_ratio_is_taken_round_by_round() -> None:
    ratio = figure([400.0, 900.0, 100.0], [100.0, 300.0, 100.0], goal=4.0).ratio()
    assert ratio is not None
    assert (ratio.median, ratio.lowest, ratio.highest) == (3.0, 1.0, 4.0)


@pytest.mark.parametrize(
    ("result", "met"),
    [
        (figure([4.0], [1.0], goal=4.0), True),
        (figure([3.9], [1.0], goal=4.0), False),
        (figure([0.2], [1.0], goal=0.3, higher=False), True),
        (figure([0.4], [1.0], goal=0.3, higher=False), False),
        (figure([1.2], None, goal=1.3, higher=False, alone=True), True),
        (figure([1.4], None, goal=1.3, higher=False, alone=True), False),
        (figure([4.0], None, goal=4.0), None),
    ],
)
def test_the_goal_is_a_lower_or_an_upper_limit(result: FigureResult, met: bool | None) -> None:
    assert result.is_met() is met


def test_the_terminal_lines_give_value_ratio_and_verdict() -> None:
    text = as_text(figure([8000.0, 9000.0, 10000.0], [2000.0, 2000.0, 2000.0], goal=4.0))
    assert "9,000 req/s (8,000–10,000)" in text
    assert "4.50 × (4.00–5.00)" in text
    assert "goal ≥ 4 ×: met" in text


def test_the_page_has_the_table_the_facts_and_a_chart(tmp_path: Path) -> None:
    figures = [
        figure([90.0], [30.0], goal=4.0),
        figure([1.0], [4.0], goal=0.3, higher=False),
        figure([1.1], None, goal=1.3, higher=False, alone=True),
    ]
    page = tmp_path / "docs" / "page.md"
    write_markdown(Results("2026-01-01", {"cores": "2"}, 3, 5, figures), page)
    text = page.read_text()
    assert (
        "| A <figure> | 90.0 req/s (90.0–90.0) | 30.0 req/s (30.0–30.0) | 3.00 × (3.00–3.00) | ≥ 4 × | missed |" in text
    )
    assert "| cores | 2 |" in text
    assert "(page.svg)" in text
    svg = ElementTree.fromstring(page.with_suffix(".svg").read_text())
    labels = ["".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert labels.count("A <figure>") == 2  # the scheduler's has nothing beside it
    assert {"3.0×", "4.0×"} <= set(labels)


def test_without_torchserve_there_is_no_chart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_markdown(Results("2026-01-01", {}, 3, 5, [figure([90.0], None, goal=4.0)]), page)
    assert not page.with_suffix(".svg").exists()
    assert "not compared" in page.read_text()


def test_json_holds_every_round(tmp_path: Path) -> None:
    Results("2026-01-01", {}, 2, 5, [figure([1.0, 2.0], [3.0, 4.0], goal=4.0)]).write(tmp_path / "results.json")
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["figures"][0]["values"] == {"torchserve-py": [1.0, 2.0], "TorchServe 0.12": [3.0, 4.0]}


def test_figures_of_an_earlier_run_stay_unless_they_were_measured_again(tmp_path: Path) -> None:
    def results(*named: tuple[str, float]) -> Results:
        figures = [
            FigureResult(name, None, name, "s", 1.0, True, True, {"torchserve-py": [value]}) for name, value in named
        ]
        return Results("2026-01-01", {}, 1, 5, figures)

    results(("a", 1.0), ("b", 1.0)).write(tmp_path / "results.json")
    earlier = Results.read(tmp_path / "results.json")
    merged = results(("c", 2.0), ("b", 2.0)).with_those_of(earlier, ["a", "b", "c"])
    assert [(each.name, each.values["torchserve-py"]) for each in merged.figures] == [
        ("a", [1.0]),
        ("b", [2.0]),
        ("c", [2.0]),
    ]

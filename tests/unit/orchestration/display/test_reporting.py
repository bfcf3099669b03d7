"""The summary of a run in the Prefect UI."""

from embodyflow.orchestration.display.reporting import summary_table


def test_values_before_and_after_stand_side_by_side() -> None:
    summary = {
        "run_id": "mine",
        "success_rate_before": 0.25,
        "success_rate_after": 0.98765,
        "success_interval_before": [0.123456, 0.5],
        "success_interval_after": [0.9, 1.0],
        "num_goals": 64,
        "weights_digest": "0123456789abcdef",
    }
    assert summary_table(summary).splitlines() == [
        "|  | before | after | change |",
        "| --- | --- | --- | --- |",
        r"| success rate | 0.25 | 0.9877 | \+0.7377 |",
        "| success interval | 0.1235, 0.5 | 0.9, 1 |  |",
        "",
        "|  |  |",
        "| --- | --- |",
        "| run id | mine |",
        "| num goals | 64 |",
        "| weights digest | 0123456789ab |",
    ]


def test_single_values_are_one_table() -> None:
    assert summary_table({"return_first": -8.5}) == "|  |  |\n| --- | --- |\n| return first | -8.5 |\n"

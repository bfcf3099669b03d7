"""The calculator: numbers and four operators; everything else is the model's mistake."""

import pytest

from embodyflow.agents.calculator import calculate
from embodyflow.agents.tools.tool import ModelMistake


@pytest.mark.parametrize(
    ("expression", "result"),
    [("123*456", "56088"), ("-(1+2)*3", "-9"), ("7/2", "3.5"), (" 2 + 2", "4"), ("1.5*2", "3.0")],
)
def test_results(expression, result):
    assert calculate(expression) == result


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2**9",
        "1/0",
        "a",
        "abs(1)",
        "True",
        "'a'*9",
        "1 2",
        "07",
        "\0",
        "(" * 150,
        "-" * 190,
        "1+" * 100 + "1",
        "1j",
    ],
)
def test_mistakes(expression):
    with pytest.raises(ModelMistake):
        calculate(expression)

"""A calculator as a tool."""

import ast
import operator
from collections.abc import Callable

from embodyflow.agents.tools.tool import ModelMistake

_OPERATORS: dict[type[ast.AST], Callable[..., int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_LONGEST_EXPRESSION = 200


def calculate(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses.
    """
    if len(expression) > _LONGEST_EXPRESSION:
        raise ModelMistake(f"an expression has at most {_LONGEST_EXPRESSION} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deep for the parser
        raise ModelMistake("not an expression") from None
    try:
        return str(_value(tree.body))
    except ArithmeticError as error:
        raise ModelMistake(str(error)) from None


def _value(node: ast.AST) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand))
    raise ModelMistake("an expression has numbers, + - * / and parentheses only")

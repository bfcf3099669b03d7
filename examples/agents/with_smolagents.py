"""An agent of the package ``smolagents`` that multiplies with a calculator."""

import json
import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def calculate(expression: str) -> str:
    """Multiply two numbers.

    Args:
        expression: Two numbers with a * between them.
    """
    left, _, right = expression.partition("*")
    return str(int(left) * int(right)) if left.isdigit() and right.isdigit() else "error: "


def main() -> None:
    """Run the agent on the row; print whether its answer is right."""
    row = json.load(sys.stdin)
    model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    agent = ToolCallingAgent(tools=[calculate], model=model, max_steps=3, verbosity_level=0)
    answer = str(agent.run(row["messages"][-1]["content"]))
    right = answer.rpartition("## ")[2] == row["ground_truth"]
    print(json.dumps({"reward": float(right), "success": right}))


if __name__ == "__main__":
    main()

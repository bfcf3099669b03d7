"""An agent of the package ``smolagents`` that answers in one step by its tool ``final_answer``."""

import json
import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent


def main() -> None:
    """Run the agent on the row; print whether its answer is right."""
    row = json.load(sys.stdin)
    model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    agent = ToolCallingAgent(tools=[], model=model, max_steps=1, verbosity_level=0)
    answer = str(agent.run(row["messages"][-1]["content"]))
    right = answer.rpartition("## ")[2] == row["ground_truth"]
    print(json.dumps({"reward": float(right), "success": right}))


if __name__ == "__main__":
    main()

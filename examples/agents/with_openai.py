"""An agent of the package ``openai`` that multiplies with a calculator."""

import json
import sys
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Multiply two numbers.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def calculate(arguments: str) -> str:
    """Return the product of two numbers, or what is wrong."""
    left, _, right = str(json.loads(arguments).get("expression")).partition("*")
    return str(int(left) * int(right)) if left.isdigit() and right.isdigit() else "error: "


def main() -> None:
    """Talk with the model until it answers without a call; print whether the answer is right."""
    row = json.load(sys.stdin)
    client, messages = OpenAI(), row["messages"]
    answer = ""
    for _ in range(3):
        message: Any = (
            client.chat.completions.create(model="policy", messages=messages, tools=[TOOL]).choices[0].message
        )
        messages.append(message)
        answer = message.content or ""
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            content = calculate(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    right = answer.rpartition("## ")[2] == row["ground_truth"]
    print(json.dumps({"reward": float(right), "success": right}))


if __name__ == "__main__":
    main()

"""A tool and a program of an agent, which meet the planned faults of a run in the middle of their episodes.

As a script it is the program, which knows of nothing but its environment. The faults of its turns have the node
``turn``, and those of the tool's calls ``call``; ``iteration`` is the number of the turn or call in the run.
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from my_programs import complete
from planned_faults import claimed_faults, folder_of_run, number_of_arrival, plan_of_run, send_signal

SCRIPT = os.path.abspath(__file__)
LONG = 60.0
"""Seconds that an episode waits for the end of a run whose flow was killed."""


async def ask(place: str) -> str:
    """Answer with the place and how often it was asked for before.

    Args:
        place: Place.
    """
    asked = plan_of_run().with_suffix(".asked")
    before = asked.read_text().splitlines() if asked.exists() else []
    for fault in claimed_faults("call", number_of_arrival("call")):
        send_signal(fault, folder_of_run())
        await asyncio.sleep(LONG)
    with asked.open("a") as file:
        file.write(f"{place}\n")
    return f"{place}/{before.count(place)}".replace("/", "*")


def count_digits(sample: Any) -> Any:
    """Return the number of digits in a response as its reward, which differs within groups of an untrained model."""
    from embodyflow.rewards.interface import Score  # the program does without embodyflow

    digits = sum(letter.isdigit() for letter in sample.response)
    return Score(float(digits), digits % 2 == 0)


def main() -> None:
    """Play an episode of two turns; the reward is the number of characters that the model wrote."""
    messages = json.load(sys.stdin)["messages"]
    for turn in range(2):
        message = complete(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], messages, max_tokens=4)
        messages += [message, {"role": "user", "content": "="}]
        if turn == 0:
            _meet_faults()
    written = "".join(message["content"] or "" for message in messages if message["role"] == "assistant")
    print(json.dumps({"reward": len(written), "success": len(written) % 2 == 0}))


def _meet_faults() -> None:
    for fault in claimed_faults("turn", number_of_arrival("turn")):
        if fault["part"] == "program":
            os.kill(os.getpid(), signal.SIGKILL)
        send_signal(fault, folder_of_run())
        time.sleep(LONG)


if __name__ == "__main__":
    main()

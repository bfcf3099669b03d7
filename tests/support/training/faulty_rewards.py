"""Reward functions that follow the order in a response, to test how managers handle failures."""

import ctypes
import math
import os
import signal
import sys
import time

from embodyflow.rewards.interface import Score


def follow(sample, marks=None):
    order, _, argument = sample.response.partition(" ")
    return ORDERS[order](argument, marks)


def follow_all(samples):
    return [follow(sample) for sample in samples]


def drop_the_last(samples):
    return follow_all(samples)[:-1]


def spend(sample):
    """Change whatever the sample holds, as a careless function does, and count what was there."""
    left = len(sample.row["tests"]) + len(sample.messages) + len(sample.ground_truth)
    sample.row["tests"].pop()
    sample.messages.append({"role": "assistant", "content": sample.response})
    sample.ground_truth.clear()
    return Score(float(left), True)


def spend_all(samples):
    return [spend(sample) for sample in samples]


def score(number, marks):
    return Score(float(number), float(number) > 0, {"length": len(number)})


def leave_a_stray(seconds, marks):
    """Start a grandchild in its own session, then sleep for ``seconds`` and return."""
    if child := os.fork():
        os.waitpid(child, 0)
        time.sleep(float(seconds))
        return Score(1.0, True)
    os.setsid()
    if stray := os.fork():
        with open(os.path.join(marks, f"{stray}.stray"), "w"):
            os._exit(0)
    time.sleep(1000)


def fork_and_return(number, marks):
    os.fork()  # both processes return
    return score(number, marks)


def die_once(number, marks):
    path = os.path.join(marks, "died")
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return score(number, marks)


def hang_in_native_code(argument, marks):
    ctypes.PyDLL(None).sleep(1000)  # holds the interpreter lock


def eat_memory(argument, marks):
    return bytearray(10**10)


ORDERS = {
    "score": score,
    "raise": lambda argument, marks: 1 / 0,
    "hang": lambda argument, marks: time.sleep(1000),
    "hang_in_native_code": hang_in_native_code,
    "die": lambda argument, marks: os.kill(os.getpid(), signal.SIGKILL),
    "die_once": die_once,
    "exit": lambda argument, marks: sys.exit(0),
    "exit_at_once": lambda argument, marks: os._exit(3),
    "nan": lambda argument, marks: Score(math.nan, False),
    "nan_part": lambda argument, marks: Score(1.0, True, {"style": math.inf}),
    "too_large": lambda argument, marks: Score(1e39, True),
    "huge": lambda argument, marks: Score(10**400, True),
    "number": lambda argument, marks: 1.0,
    "none": lambda argument, marks: None,
    "correct": lambda argument, marks: Score(1.0, 1),
    "eat_memory": eat_memory,
    "fork": fork_and_return,
    "stray": leave_a_stray,
}

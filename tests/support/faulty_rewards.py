"""Reward functions that do what the response says, for managers that must survive it."""

import ctypes
import math
import os
import signal
import sys
import time

from embodyflow.rewards.reward_interface import Score


def obey(sample, marks=None):
    order, _, argument = sample.response.partition(" ")
    return ORDERS[order](argument, marks)


def obey_all(samples):
    return [obey(sample) for sample in samples]


def drop_the_last(samples):
    return obey_all(samples)[:-1]


def say(number, marks):
    return Score(float(number), float(number) > 0, {"length": len(number)})


def leave_a_stray(seconds, marks):
    """Leave a child of a child, in a session of its own."""
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
    os.fork()  # both return
    return say(number, marks)


def die_once(number, marks):
    path = os.path.join(marks, "died")
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return say(number, marks)


def hang_in_native_code(argument, marks):
    ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock held


def eat_memory(argument, marks):
    return bytearray(10**10)


ORDERS = {
    "say": say,
    "raise": lambda argument, marks: 1 / 0,
    "hang": lambda argument, marks: time.sleep(1000),
    "hang_in_native_code": hang_in_native_code,
    "die": lambda argument, marks: os.kill(os.getpid(), signal.SIGKILL),
    "die_once": die_once,
    "exit": lambda argument, marks: sys.exit(0),
    "exit_at_once": lambda argument, marks: os._exit(3),
    "nan": lambda argument, marks: Score(math.nan, False),
    "nan_part": lambda argument, marks: Score(1.0, True, {"style": math.inf}),
    "number": lambda argument, marks: 1.0,
    "none": lambda argument, marks: None,
    "correct": lambda argument, marks: Score(1.0, 1),
    "eat_memory": eat_memory,
    "fork": fork_and_return,
    "stray": leave_a_stray,
}

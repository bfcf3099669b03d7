"""Unit tests compute in one thread, as every worker of a run does.

A row's bits depend on it: with more threads, attention differs by rounding with the row's place in the batch. Two
pytest processes on two cores also end sooner so. Set before torch is imported, and for the processes that tests start.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

"""Judgement of a program from another process: the tests run in one sandbox, the program answers calls in another."""

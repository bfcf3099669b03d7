"""The choice of a conductor by what an engine offers."""

from typing import TypeVar

from embodyflow.agents.conducting.conductor import Conductor
from embodyflow.agents.conducting.free_running import FreeRunning
from embodyflow.agents.conducting.lockstep import Lockstep
from embodyflow.generation.interface import ConversationEngine, GenerationEngine, Sampling

T = TypeVar("T")


def build_conductor(engine: GenerationEngine, sampling: Sampling) -> Conductor[T]:
    """Build the conductor that lets episodes run freely if the engine is batch-invariant.

    Args:
        engine: Engine that samples.
        sampling: Sampling parameters of all turns.
    """
    if isinstance(engine, ConversationEngine) and engine.is_batch_invariant():
        return FreeRunning(engine, sampling)
    return Lockstep(engine, sampling)

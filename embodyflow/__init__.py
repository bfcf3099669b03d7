"""embodyflow: reinforcement-learning post-training for robot policies and language models.

This package is the library: everything that need not know Prefect. See ``docs/explanation/architecture.md`` for the map.
"""

__version__ = "0.2.0"

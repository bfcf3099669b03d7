"""embodyflow: reinforcement-learning post-training for robot policies and language models.

This package is the machinery behind the rooms of a project. ``docs/explanation/architecture.md`` has the map.
"""

__version__ = "0.2.0"

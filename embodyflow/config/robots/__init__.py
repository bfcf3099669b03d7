"""The configuration of robot jobs: embodied and control jobs, their environments, and training on replayed steps."""

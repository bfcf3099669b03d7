"""Off-policy training: trainers that sample replayed transitions, and the learners SAC and TD3."""

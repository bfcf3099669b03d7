"""The sizes that a plan takes from a run's configuration."""

from embodyflow.config import RunConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.graph.memory_estimate import ModelSize


def run_sizes(config: RunConfig) -> tuple[ModelSize, ModelSize | None]:
    """Return the sizes of a run's policy, and of its critic if it has one.

    A micro-batch has ``trainer.micro_batch_rows`` rows, or a rank's share of a mini-batch, of full-length episodes.

    Raises:
        ConfigError: A model cannot be sized; see :mod:`embodyflow.training.model_sizes`.
    """
    from embodyflow.rollouts.embodied_rollout import SMALLEST_BATCH  # these take seconds to import
    from embodyflow.training.model_sizes import count_critic, count_policy

    policy, critic, trainer = count_policy(config), count_critic(config), config.trainer
    kept, passed = 0, 0
    if isinstance(config, EmbodiedConfig):
        share = -(-config.full_batch // (trainer.num_minibatches * trainer.num_ranks))
        rows = trainer.micro_batch_rows or share
        kept = policy.training_activations * rows * config.num_decisions
        passed = policy.acting_activations * max(config.rollout.envs_per_worker, SMALLEST_BATCH)
    model = ModelSize(policy.num_params, policy.num_trained, kept, passed)
    return model, None if critic is None else ModelSize(critic.num_params, critic.num_trained)

"""How much faster than Stable-Baselines3 can PPO be? An iteration's bare physics and gradient steps against SB3.

    python -m benchmarks.control.ppo_bound

The task is HalfCheetah-v5 with the hyper-parameters of ``experiment=half_cheetah``: 16 environments, 4,096 steps, 160
gradient steps on 256 rows. "Bare" has no observations, rewards, episodes, advantages, metrics, processes or Prefect. It
runs ``mj_step`` in one thread per core without waiting for the policy, the policy's forward passes, and gradient steps
on existing rows in plain PyTorch on one core. "Compiled" uses ``torch.compile`` for the loss and its gradient, which
needs a C++ compiler. Contenders take turns in one process. Ratios are taken per round; the figures are their medians.
"""

import argparse
import shutil
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from benchmarks.commands import ROOT
from benchmarks.control.ppo_control import build_stable_baselines3, cpu_seconds
from benchmarks.report import write_report
from benchmarks.robots.vector_env import NUM_ENVS, BarePhysics, half_cheetah
from embodyflow.config.composition.compose import compose_config

RESULTS = ROOT / "benchmarks" / "results" / "ppo_bound.json"
STATE_DIM, ACTION_DIM, WIDTH = 17, 6, 64


class ActorCritic(nn.Module):
    """SB3's ``MlpPolicy``: two networks with two hidden layers each, and a state-independent standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = _network(ACTION_DIM), _network(1)
        self.log_std = nn.Parameter(torch.zeros(ACTION_DIM))


class Bare:
    """Physics and gradient steps of PPO's iterations.

    Args:
        config: Configuration of the job.
        loss_of: Function that computes the loss of a mini-batch.
    """

    def __init__(self, config: Any, loss_of: Callable[..., Tensor]) -> None:
        self._config, self._loss_of = config, loss_of
        self._model = ActorCritic()
        self._parameters = list(self._model.parameters())
        trainer = config.trainer
        self._optimizer = torch.optim.Adam(
            self._parameters, lr=trainer.learning_rate, eps=trainer.adam_epsilon, fused=True
        )
        self._physics = BarePhysics([half_cheetah] * NUM_ENVS, chunk_size=1)
        self._physics.reset()
        rows = config.rows_per_iteration // config.trainer.num_minibatches
        self._rows = [torch.randn(rows, size) for size in (STATE_DIM, ACTION_DIM)] + list(torch.randn(3, rows))

    def iterate(self) -> None:
        """Do the work of one iteration."""
        states = torch.randn(NUM_ENVS, STATE_DIM)
        self._physics.play(None, None, num_chunks=self._config.rollout.num_steps)
        with torch.inference_mode():
            for _ in range(self._config.rollout.num_steps):
                self._model.policy(states)
                self._model.value(states)
        for _ in range(self._config.trainer.epochs * self._config.trainer.num_minibatches):
            self._optimizer.zero_grad()
            loss: Any = self._loss_of(self._model, *self._rows)
            loss.backward()
            nn.utils.clip_grad_norm_(self._parameters, self._config.trainer.max_grad_norm)
            self._optimizer.step()


def ppo_loss(
    model: ActorCritic, states: Tensor, actions: Tensor, old_log_probs: Tensor, advantages: Tensor, returns: Tensor
) -> Tensor:
    """Return PPO's loss (Schulman et al. 2017, arXiv:1707.06347) plus half the critic's, up to constants.

    Args:
        model: Policy and critic.
        states: States [N, S].
        actions: Actions [N, A].
        old_log_probs: Log-probs of the actions under the old policy, [N].
        advantages: Advantages [N].
        returns: Returns [N].
    """
    distances = (actions - model.policy(states)) / model.log_std.exp()
    log_probs = -(distances.square() / 2 + model.log_std).sum(-1)
    ratio = (log_probs - old_log_probs).exp()
    weights = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate = torch.min(ratio * weights, ratio.clamp(0.8, 1.2) * weights).mean()
    return (model.value(states)[:, 0] - returns).square().mean() / 2 - surrogate


def _network(outputs: int) -> nn.Sequential:
    widths = (STATE_DIM, WIDTH, WIDTH, outputs)
    linear = [nn.Linear(*pair) for pair in pairwise(widths)]
    return nn.Sequential(linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


def seconds(iterate: Callable[[], object]) -> dict[str, float]:
    """Return wall and CPU seconds of a call, including this process's children."""
    process = psutil.Process()
    began, cpu = time.perf_counter(), cpu_seconds(process)
    iterate()
    return {"wall": time.perf_counter() - began, "cpu": cpu_seconds(process) - cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    config: Any = compose_config(["experiment=half_cheetah", "algorithm=ppo", "run_id=bound"])
    peer = build_stable_baselines3(config)
    rows = config.rows_per_iteration
    contenders = {
        "stable-baselines3": lambda: peer.learn(rows, reset_num_timesteps=False),
        "bare": Bare(config, ppo_loss).iterate,
    }
    if shutil.which("g++") or shutil.which("clang++"):
        contenders["bare, compiled"] = Bare(config, torch.compile(ppo_loss)).iterate
    for iterate in contenders.values():
        iterate()
    rounds = []
    for turn in range(arguments.rounds):
        order = list(contenders) if turn % 2 else list(reversed(contenders))
        rounds.append({name: seconds(contenders[name]) for name in order})
    comparisons = []
    for name in contenders:
        medians = {key: statistics.median(each[name][key] for each in rounds) for key in ("wall", "cpu")}
        ratios = {
            f"{key}_ratio": statistics.median(each["stable-baselines3"][key] / each[name][key] for each in rounds)
            for key in medians
        }
        comparisons.append({"contender": name, **medians, **ratios})
        print(f"{name:18} {medians['wall']:.3f} s, {medians['cpu']:.3f} CPU s per iteration", end="")
        print(f"; {ratios['wall_ratio']:.2f} and {ratios['cpu_ratio']:.2f} times SB3's speed")
    write_report(RESULTS, ("torch", "stable-baselines3", "mujoco"), comparisons, rounds=arguments.rounds)


if __name__ == "__main__":
    main()

"""Do the formulas agree with the peer's own code on random rows?

    python -m benchmarks.peers_formulas --folder /tmp/peers_formulas

The script makes a virtual environment in the folder, which sees the packages of this one, installs verl there without
its dependencies, and runs itself there. Each case has ragged rows, masks with holes and groups of one to six rows; half
of the cases have a row without tokens. Losses are compared with their gradients. The figures are the largest absolute
difference over all cases, in ``benchmarks/results/peers_formulas.json``.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.aggregation import count_tokens, token_weights
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.behavior import behavior_weights
from embodyflow.algorithms.covariance import select_tokens
from embodyflow.algorithms.losses import LossInputs
from embodyflow.algorithms.objective import policy_objective

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "peers_formulas.json"
PEER = "verl 0.9.1"
PACKAGES = ("verl==0.9.1", "codetiming==1.4.0")
NUM_CASES = 40

ADVANTAGES = {
    "grpo": "compute_grpo_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "opo": "compute_opo_outcome_advantage",
    "reinforce_plus_plus_baseline": "compute_reinforce_plus_plus_baseline_outcome_advantage",
}
LOSSES = {
    "ppo": ("vanilla", "token_mean", {}),
    "gspo": ("gspo", "seq_mean_token_mean", {}),
    "gmpo": ("geo_mean", "seq_mean_token_mean", {}),
    "sapo": ("sapo", "seq_mean_token_mean", {}),
    "cispo": ("cispo", "token_mean", {"clip_low": 0.2}),
    "kl_cov": ("kl_cov", "token_mean", {"covariance": {"fraction": 0.1}}),
}
NOTES = {
    "gmpo": "the peer divides by all rows, ours by rows with tokens: compared on rows with tokens",
    "cispo": "with clip_low=0.2, as the peer has a lower bound",
    "kl_cov": "from the current log-probs, as in the peer",
    "rejection token": "the peer rejects outside the bounds as a mask: compared with weights above 0",
}


@dataclass(frozen=True)
class Case:
    """Random rows, float64 [B, L]; masks are bool, group ids int64 [B]."""

    rewards: Tensor
    mask: Tensor
    group_ids: Tensor
    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor


def cases() -> Iterator[Case]:
    """Yield the cases, each from a seed of its own."""
    for seed in range(NUM_CASES):
        rng = torch.Generator().manual_seed(seed)
        sizes = torch.randint(1, 7, (5,), generator=rng)
        group_ids = torch.repeat_interleave(torch.arange(5), sizes)
        shape = (len(group_ids), 12)
        lengths = torch.randint(1, 13, (shape[0], 1), generator=rng)
        mask = (torch.arange(12) < lengths) & (torch.rand(shape, generator=rng) < 0.8)
        mask[:, 0] = True
        if seed % 2:
            mask[0] = False
        last = torch.zeros(shape, dtype=torch.float64)
        last[:, 0] = torch.randn(shape[0], generator=rng, dtype=torch.float64)
        old = -torch.rand(shape, generator=rng, dtype=torch.float64) * 3
        new = old + 0.4 * torch.randn(shape, generator=rng, dtype=torch.float64)
        advantages = torch.randn(shape[0], 1, generator=rng, dtype=torch.float64) * mask
        yield Case(last * mask, mask, group_ids, new, old, advantages)


def advantage_difference(core: Any, name: str, case: Case) -> float:
    """Return the largest difference of an advantage estimator."""
    ours, _ = compute_advantages(
        AdvantageInputs(case.rewards, case.mask, case.group_ids), AlgorithmConfig(advantage=name)
    )
    theirs, _ = getattr(core, ADVANTAGES[name])(
        token_level_rewards=case.rewards.clone(), response_mask=case.mask.double(), index=case.group_ids.numpy()
    )
    return float((ours - theirs).abs().max())


def loss_difference(core: Any, name: str, case: Case) -> float:
    """Return the largest difference of a policy loss and its gradient."""
    peer = import_module("verl.workers.config")
    registered, aggregation, settings = LOSSES[name]
    config = AlgorithmConfig(loss=name, aggregation=aggregation, **settings)
    keep = case.mask.any(1) if name == "gmpo" else torch.ones(len(case.mask), dtype=torch.bool)
    new, old, advantages, mask = (x[keep] for x in (case.log_probs, case.old_log_probs, case.advantages, case.mask))
    outcomes = []
    for ours in (True, False):
        log_probs = new.clone().requires_grad_()
        if ours:
            selected = select_tokens(new, advantages, mask, torch.arange(len(mask)), config)
            weights = token_weights(mask, config.aggregation, count_tokens(mask, mask.shape[1]))
            loss, _ = policy_objective(LossInputs(log_probs, old, advantages, mask, selected=selected), weights, config)
        else:
            theirs = peer.ActorConfig(
                policy_loss=peer.PolicyLossConfig(
                    kl_cov_ratio=config.covariance.fraction, ppo_kl_coef=config.covariance.kl_coef
                ),
                strategy="fsdp",
                rollout_n=1,
                ppo_micro_batch_size_per_gpu=1,
                clip_ratio_low=config.clip_low,
                clip_ratio_high=config.clip_high,
            )
            loss, _ = core.get_policy_loss_fn(registered)(
                old_log_prob=old,
                log_prob=log_probs,
                advantages=advantages,
                response_mask=mask.double(),
                loss_agg_mode=aggregation.replace("_", "-"),
                config=theirs,
            )
        (gradient,) = torch.autograd.grad(loss, log_probs)
        outcomes.append(torch.cat([loss.detach()[None], gradient.flatten()]))
    return float((outcomes[0] - outcomes[1]).abs().max())


def rejection_difference(level: str, case: Case) -> float:
    """Return 1 if a token is rejected here and kept there, or the other way round."""
    helper = import_module("verl.trainer.ppo.rollout_corr_helper")
    config = AlgorithmConfig(old_log_probs="proximal", rejection={"level": level, "low": 0.8, "high": 1.25})
    ours = behavior_weights(case.log_probs, case.old_log_probs, case.mask, config) * case.mask > 0
    theirs, _ = helper.compute_rollout_rejection_mask(
        case.log_probs - case.old_log_probs,
        case.mask.double(),
        "token_k1" if level == "token" else "seq_mean_k1",
        "0.8_1.25",
    )
    return float((ours != (theirs > 0)).any())


def compare() -> None:
    """Write the table; runs where the peer is installed."""
    core = import_module("verl.trainer.ppo.core_algos")
    measures: dict[str, Callable[[Case], float]] = {}
    measures |= {f"advantage {name}": partial(advantage_difference, core, name) for name in ADVANTAGES}
    measures |= {f"loss {name}": partial(loss_difference, core, name) for name in LOSSES}
    measures |= {f"rejection {level}": partial(rejection_difference, level) for level in ("token", "sequence")}
    rows = []
    for formula, measure in measures.items():
        largest = max(measure(case) for case in cases())
        note = NOTES.get(formula, NOTES.get(formula.split()[-1], ""))
        rows.append({"formula": formula, "peer": PEER, "cases": NUM_CASES, "max_difference": largest, "note": note})
        print(formula, largest, flush=True)
    RESULTS.write_text(json.dumps({"comparisons": rows}, indent=2) + "\n")


def main() -> None:
    """Install the peer and run the comparison there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the virtual environment")
    parser.add_argument("--compare", action="store_true", help="compare at once: the peer is installed here")
    arguments = parser.parse_args()
    if arguments.compare:
        compare()
        return
    python = arguments.folder / "bin" / "python"
    if not python.exists():
        venv.create(arguments.folder, with_pip=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = arguments.folder / "lib" / version / "site-packages"
        (packages / "of_embodyflow.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES], check=True)
    command = [python, "-m", "benchmarks.peers_formulas", "--folder", arguments.folder, "--compare"]
    subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    main()

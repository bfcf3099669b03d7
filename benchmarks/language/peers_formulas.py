"""Do the formulas agree with the peers' own code on random rows?

    python -m benchmarks.language.peers_formulas --folder /tmp/peers_formulas

The script makes a virtual environment in the folder, which sees the packages of this one, installs verl and TRL there
without their dependencies, and runs itself there. Each case has ragged rows, masks with holes and groups of one to six
rows; half of the cases have a row without tokens. Losses are compared with their gradients. The figures are the largest
absolute difference over all cases, in ``benchmarks/results/peers_formulas.json``.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
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
from embodyflow.algorithms.selection import top_entropy_tokens

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers_formulas.json"
VERL, TRL = "verl 0.9.1", "TRL 1.16.0"
PACKAGES = ("verl==0.9.1", "codetiming==1.4.0", "trl==1.16.0")
NUM_CASES = 40

ADVANTAGES = {
    "grpo": "compute_grpo_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "opo": "compute_opo_outcome_advantage",
    "remax": "compute_remax_outcome_advantage",
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
LENGTH = 12
"""Most tokens of a row."""
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
TRL_LOSSES = {
    "grpo": ({}, {**CLIP, "clip_ratio_c": None, "aggregation": "seq_mean_token_mean"}),
    "bnpo": ({}, {**CLIP, "clip_ratio_c": None, "aggregation": "token_mean"}),
    "dr_grpo": ({}, {**CLIP, "clip_ratio_c": None, "aggregation": "seq_mean_token_sum_norm"}),
    "dapo": ({}, {**CLIP, "clip_ratio_c": None, "aggregation": "token_mean"}),
    "dapo, delta": ({"delta": 1.5}, {**CLIP, "clip_ratio_c": 1.5, "aggregation": "token_mean"}),
    "dapo, top_entropy_quantile": (
        {"top_entropy_quantile": 0.2},
        {**CLIP, "clip_ratio_c": None, "aggregation": "token_mean", "top_entropy_fraction": 0.2},
    ),
    "grpo, importance_sampling_level=sequence": (
        {"importance_sampling_level": "sequence"},
        {**CLIP, "loss": "gspo", "aggregation": "seq_mean_token_mean"},
    ),
    "cispo": ({"epsilon_high": 1.28}, {"loss": "cispo", "clip_high": 0.28, "aggregation": "token_mean"}),
    "sapo": ({}, {"loss": "sapo", "aggregation": "seq_mean_token_mean"}),
    "grpo, beta": (
        {"beta": 0.1},
        {**CLIP, "clip_ratio_c": None, "aggregation": "seq_mean_token_mean", "kl": {"coef": 0.1, "estimator": "k3"}},
    ),
}
"""Settings of TRL's loss by its ``loss_type`` and what differs from the default, with those of ours."""
NOTES = {
    "verl gmpo": "the peer divides by all rows, ours by rows with tokens: compared on rows with tokens",
    "verl cispo": "with clip_low=0.2, as the peer has a lower bound",
    "verl kl_cov": "from the current log-probs, as in the peer",
    "rejection token": "the peer rejects outside the bounds as a mask: compared with weights above 0",
    "TRL dapo, delta": "delta is algorithm.clip_ratio_c",
    "TRL dapo, top_entropy_quantile": "the peer's quantile is that of a micro-batch, ours of the mini-batch",
    **dict.fromkeys(
        ("TRL grpo", "TRL dr_grpo", "TRL sapo", "TRL grpo, importance_sampling_level=sequence", "TRL grpo, beta"),
        "the peer divides by all rows, ours by rows with tokens: compared on rows with tokens",
    ),
}


@dataclass(frozen=True)
class Case:
    """Random rows, float64 [B, L]; masks are bool, group ids int64 [B], baselines float64 [B]."""

    rewards: Tensor
    mask: Tensor
    group_ids: Tensor
    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    entropy: Tensor
    ref_log_probs: Tensor
    baselines: Tensor

    def only(self, rows: Tensor) -> "Case":
        """Return the case with some of its rows, given as bool [B]."""
        return Case(*(getattr(self, field.name)[rows] for field in fields(self)))


def cases() -> Iterator[Case]:
    """Yield the cases, each from a seed of its own."""
    for seed in range(NUM_CASES):
        rng = torch.Generator().manual_seed(seed)
        sizes = torch.randint(1, 7, (5,), generator=rng)
        group_ids = torch.repeat_interleave(torch.arange(5), sizes)
        shape = (len(group_ids), LENGTH)
        lengths = torch.randint(1, LENGTH + 1, (shape[0], 1), generator=rng)
        mask = (torch.arange(LENGTH) < lengths) & (torch.rand(shape, generator=rng) < 0.8)
        mask[:, 0] = True
        if seed % 2:
            mask[0] = False
        last = torch.zeros(shape, dtype=torch.float64)
        last[:, 0] = torch.randn(shape[0], generator=rng, dtype=torch.float64)
        old = -torch.rand(shape, generator=rng, dtype=torch.float64) * 3
        new = old + 0.4 * torch.randn(shape, generator=rng, dtype=torch.float64)
        advantages = torch.randn(shape[0], 1, generator=rng, dtype=torch.float64) * mask
        entropy = torch.rand(shape, generator=rng).double()
        reference = new + 0.3 * torch.randn(shape, generator=rng, dtype=torch.float64)
        baselines = torch.randn(5, generator=rng, dtype=torch.float64)[group_ids]
        yield Case(last * mask, mask, group_ids, new, old, advantages, entropy, reference, baselines)


def advantage_difference(core: Any, name: str, case: Case) -> float:
    """Return the largest difference of an advantage estimator."""
    ours, _ = compute_advantages(
        AdvantageInputs(case.rewards, case.mask, case.group_ids, baselines=case.baselines),
        AlgorithmConfig(advantage=name),
    )
    given = {"reward_baselines": case.baselines} if name == "remax" else {"index": case.group_ids.numpy()}
    theirs, _ = getattr(core, ADVANTAGES[name])(
        token_level_rewards=case.rewards.clone(), response_mask=case.mask.double(), **given
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


def trl_difference(name: str, case: Case) -> float:
    """Return the largest difference of a policy loss of TRL and its gradient."""
    theirs, ours = TRL_LOSSES[name]
    config = AlgorithmConfig(**ours)
    if config.aggregation != "token_mean":
        case = case.only(case.mask.any(1))
    outcomes = []
    for loss_of in (partial(_our_loss, config), partial(_trl_loss, name.partition(",")[0], theirs)):
        log_probs = case.log_probs.clone().requires_grad_()
        loss = loss_of(case, log_probs)
        (gradient,) = torch.autograd.grad(loss, log_probs)
        outcomes.append(torch.cat([loss.detach()[None], gradient.flatten()]))
    return float((outcomes[0] - outcomes[1]).abs().max())


def _our_loss(config: AlgorithmConfig, case: Case, log_probs: Tensor) -> Tensor:
    weights = token_weights(case.mask, config.aggregation, count_tokens(case.mask, LENGTH))
    high = None
    if config.top_entropy_fraction < 1:
        high = top_entropy_tokens(case.entropy, case.mask, config.top_entropy_fraction)
    inputs = LossInputs(
        log_probs, case.old_log_probs, case.advantages, case.mask, ref_log_probs=case.ref_log_probs, high_entropy=high
    )
    loss, _ = policy_objective(inputs, weights, config)
    return loss


def _trl_loss(loss_type: str, settings: dict[str, Any], case: Case, log_probs: Tensor) -> Tensor:
    """Call TRL's loss with a trainer that has nothing but settings and the given log-probs."""
    trainer_class = import_module("trl.trainer.grpo_trainer").GRPOTrainer
    settings = {"epsilon_low": 0.2, "epsilon_high": 0.28, "delta": None, "top_entropy_quantile": 1.0} | settings
    settings = {"importance_sampling_level": "token", "beta": 0.0} | settings
    arguments = {"use_bias_correction_kl": False, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    accelerator = SimpleNamespace(
        num_processes=1,
        gather=lambda tensor: tensor,
        reduce=lambda tensor, reduction: tensor,
        pad_across_processes=lambda tensor, dim, pad_index: tensor,
    )
    trainer = SimpleNamespace(
        **settings,
        loss_type=loss_type,
        args=SimpleNamespace(delta=settings["delta"], **arguments),
        accelerator=accelerator,
        aux_loss_enabled=False,
        off_policy_mask_threshold=None,
        use_vllm=False,
        max_completion_length=LENGTH,
        model=SimpleNamespace(training=False),
        _entropy_bonus_enabled=False,
        _metrics={"eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, case.entropy.float(), None),
    )
    trainer.get_high_entropy_mask = partial(trainer_class.get_high_entropy_mask, trainer)
    mask, ids = case.mask.double(), torch.zeros_like(case.mask, dtype=torch.int64)
    inputs = {
        **{"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask},
        **{"advantages": case.advantages, "old_per_token_logps": case.old_log_probs},
        **{"ref_per_token_logps": case.ref_log_probs, "num_items_in_batch": mask.sum()},
    }
    loss: Tensor = trainer_class._compute_loss(trainer, None, inputs)
    return loss


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
    """Write the table; runs where the peers are installed."""
    core = import_module("verl.trainer.ppo.core_algos")
    measures: dict[tuple[str, str, str], Callable[[Case], float]] = {}
    measures |= {(VERL, "advantage", name): partial(advantage_difference, core, name) for name in ADVANTAGES}
    measures |= {(VERL, "loss", name): partial(loss_difference, core, name) for name in LOSSES}
    measures |= {(VERL, "rejection", level): partial(rejection_difference, level) for level in ("token", "sequence")}
    measures |= {(TRL, "loss", name): partial(trl_difference, name) for name in TRL_LOSSES}
    rows = []
    for (peer, kind, name), measure in measures.items():
        largest = max(measure(case) for case in cases())
        note = NOTES.get(f"{kind} {name}", NOTES.get(f"{peer.split()[0]} {name}", ""))
        formula = f"{kind} {name}"
        rows.append({"formula": formula, "peer": peer, "cases": NUM_CASES, "max_difference": largest, "note": note})
        print(peer, formula, largest, flush=True)
    RESULTS.write_text(json.dumps({"comparisons": rows}, indent=2) + "\n")


def main() -> None:
    """Install the peers and run the comparison there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the virtual environment")
    parser.add_argument("--compare", action="store_true", help="compare at once: the peers are installed here")
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
    command = [python, "-m", "benchmarks.language.peers_formulas", "--folder", arguments.folder, "--compare"]
    subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    main()

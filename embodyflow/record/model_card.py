"""The model card of an exported policy, ``README.md`` in its folder, in the format of the Hugging Face hub."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, repo_exists, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

import embodyflow
from embodyflow.config import RunConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.process.files.durable_files import write_atomically

_logger = logging.getLogger(__name__)

CARD = "README.md"

_LEROBOT = """from lerobot.policies.{name}.modeling_{name} import {title}Policy

policy = {title}Policy.from_pretrained(folder)"""
_GENERIC = """import json
from pathlib import Path

from safetensors.torch import load_file

from embodyflow.policies.policy_config import PolicyConfig
from embodyflow.policies.policy_registry import build_policy, validate_policy

config = validate_policy(json.loads((Path(folder) / "config.json").read_text()), PolicyConfig)
policy = build_policy(config, "cpu")
policy.model.load_state_dict(load_file(Path(folder) / "model.safetensors"))"""

LOADING: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "tiny_vla": (
            "embodyflow",
            "from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA\n\n"
            "model = TinyVLA.from_pretrained(folder)",
        ),
        "mlp_gaussian": ("embodyflow", _GENERIC),
        "mlp_categorical": ("embodyflow", _GENERIC),
        "diffusion": ("embodyflow", _GENERIC),
        "smolvla": ("lerobot", _LEROBOT.format(name="smolvla", title="SmolVLA")),
        "pi0": ("lerobot", _LEROBOT.format(name="pi0", title="PI0")),
        "act": ("lerobot", _LEROBOT.format(name="act", title="ACT")),
        "pi05": ("lerobot", _LEROBOT.format(name="pi05", title="PI05")),
        "steered_smolvla": ("embodyflow", _GENERIC),
        "steered_pi0": ("embodyflow", _GENERIC),
        "causal_lm": (
            "transformers",
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            "model = AutoModelForCausalLM.from_pretrained(folder)\n"
            "tokenizer = AutoTokenizer.from_pretrained(folder)",
        ),
    }
)
"""Library and code that load the folder of a policy, by the policy's name."""

_MEASURES = ("success_rate", "return")
"""Measures that a summary may have before and after training, such as ``success_rate_after``."""


def write_model_card(folder: Path, config: RunConfig, summary: Mapping[str, Any]) -> None:
    """Write the card of a run's policy into the folder of the policy.

    Args:
        folder: Folder of the exported policy.
        config: Run configuration.
        summary: Content of ``summary.json``.
    """
    write_atomically(folder / CARD, str(model_card(config, summary)))


def model_card(config: RunConfig, summary: Mapping[str, Any]) -> ModelCard:
    """Return the card of a run's policy; see :func:`write_model_card`."""
    base = getattr(config.policy, "path", None)
    known = {} if base is None else _base_facts(base)
    name = str(config.run_id)
    data = ModelCardData(
        library_name=LOADING.get(config.policy.name, ("embodyflow", ""))[0],
        pipeline_tag=config.pipeline_tag,
        tags=["embodyflow", config.pipeline_tag, *([config.algorithm_name] if config.algorithm_name else [])],
        model_name=name,
        eval_results=_results(config, summary) or None,
        license=known.get("license"),
        base_model=known.get("base_model"),
    )
    parts = [
        f"# {name}",
        f"A `{config.policy.name}` policy for {config.task_name}. It was trained by "
        f"embodyflow {embodyflow.__version__} with the flow `{config.flow}`.",
        _base_sentence(base, known),
        "## Results",
        _results_table(summary),
        "## Training",
        _facts_table(config, summary),
        "## How to load it",
        _loading(config),
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n")


def _measure(summary: Mapping[str, Any]) -> str | None:
    return next((name for name in _MEASURES if f"{name}_after" in summary), None)


def _interval(summary: Mapping[str, Any], measure: str, moment: str) -> str:
    low, high = summary[f"{measure.removesuffix('_rate')}_interval_{moment}"]
    return f"[{low:.4g}, {high:.4g}]"


def _results(config: RunConfig, summary: Mapping[str, Any]) -> list[EvalResult]:
    measure = _measure(summary)
    if measure is None:
        return []
    interval = _interval(summary, measure, "after")
    return [
        EvalResult(
            task_type=config.pipeline_tag,
            dataset_type=config.experiment,
            dataset_name=config.task_name,
            metric_type=measure,
            metric_name=f"{measure.replace('_', ' ')} on {_sample(summary)}, 95 % interval {interval}",
            metric_value=summary[f"{measure}_after"],
        )
    ]


def _sample(summary: Mapping[str, Any]) -> str:
    if "num_goals" in summary:
        return f"{summary['num_goals']} goals or prompts that training never used"
    return f"{summary['num_evaluation_episodes']} evaluation episodes"


def _results_table(summary: Mapping[str, Any]) -> str:
    measure = _measure(summary)
    if measure is None:
        return "The policy was not evaluated. The mean returns of training episodes were " + (
            f"{summary.get('return_first')} in the first iteration and {summary.get('return_last')} in the last."
        )
    lines = [f"Measured on {_sample(summary)}, with 95 % intervals.", "", "| | before training | after training |"]
    lines.append("|---|---|---|")
    shown = {
        moment: f"{summary[f'{measure}_{moment}']:.4g} {_interval(summary, measure, moment)}"
        for moment in ("before", "after")
    }
    lines.append(f"| {measure.replace('_', ' ')} | {shown['before']} | {shown['after']} |")
    if "sampled_success_rate_after" in summary:
        sampled = [f"{summary[f'sampled_success_rate_{moment}']:.4g}" for moment in ("before", "after")]
        lines.append(f"| with sampled actions or tokens | {sampled[0]} | {sampled[1]} |")
    if solved := summary.get("solved_at_reset"):
        lines += ["", f"{len(solved)} goals are solved at reset, without the policy."]
    if unrestorable := summary.get("unrestorable"):
        lines += ["", f"Repeated runs are not bit-identical: {'; '.join(unrestorable)}."]
    return "\n".join(lines)


def _facts_table(config: RunConfig, summary: Mapping[str, Any]) -> str:
    facts = {
        "experiment": config.experiment,
        "algorithm": config.algorithm_name or "of its own",
        "seed": config.seed,
        "iterations": summary["iterations"],
        "seconds of training": summary["train_seconds"],
        "SHA-256 of the weights": summary["weights_digest"],
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in facts.items())])


def _base_sentence(base: str | None, known: Mapping[str, Any]) -> str:
    if base is None:
        return "It started from random weights. Choose a licence before you publish it."
    licence = f"under the licence `{known['license']}`" if "license" in known else "whose licence is not known here"
    return f"It started from `{known.get('base_model', base)}`, {licence}."


def _base_facts(base: str) -> dict[str, str]:
    """Return ``license`` and ``base_model`` of the model that training started from, as far as they are known.

    Args:
        base: Folder, whose card may name both, or name on the hub.
    """
    card = _base_card(base)
    facts = {} if Path(base).is_dir() else {"base_model": base}
    if card is not None:
        named = {name: card.data.get(name) for name in ("license", "base_model")}
        facts = {name: value for name, value in named.items() if isinstance(value, str)} | facts
    return facts


def _base_card(base: str) -> ModelCard | None:
    """Return the card in a folder, in the hub's cache or on the hub, or ``None``."""
    try:
        if Path(base).is_dir():
            path = Path(base) / CARD
            return ModelCard.load(path, ignore_metadata_errors=True) if path.is_file() else None
        cached = try_to_load_from_cache(base, CARD)
        if isinstance(cached, str):
            return ModelCard.load(cached, ignore_metadata_errors=True)
        return ModelCard.load(base, ignore_metadata_errors=True) if repo_exists(base) else None
    except (HfHubHTTPError, HFValidationError, OSError, ValueError, yaml.YAMLError) as error:
        _logger.warning("the licence of %s is not known: %s", base, str(error).strip().partition("\n")[0])
        return None


def _loading(config: RunConfig) -> str:
    code = LOADING.get(config.policy.name, ("", ""))[1]
    place = f"this folder's {' or '.join(config.agents)}" if config.has_own_weights else "this folder"
    blocks = [f'```python\nfolder = "…"  # {place}\n{code}\n```'] if code else []
    command = None
    if getattr(config.policy, "exports_checkpoint", hasattr(config.policy, "path")):
        command = f"embodyflow run --experiment {config.experiment} policy.path=<{place}> policy.scratch=null"
    elif isinstance(config, EmbodiedConfig):
        command = f"python -m flows.evaluate policy=<this folder> experiment={config.experiment}"
    if command is not None:
        blocks.append(f"In embodyflow:\n\n```sh\n{command}\n```")
    return "\n\n".join(blocks)

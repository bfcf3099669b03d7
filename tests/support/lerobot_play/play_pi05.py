"""LeRobot's own π0.5, loaded from a folder that embodyflow exported: its actions and its imitation loss.

It runs in an environment of its own: lerobot 0.4.4 with its requirements, and transformers 4.53.2 with the files of
openpi's ``src/openpi/models_pytorch/transformers_replace`` copied over it, as LeRobot's π0 and π0.5 require::

    python play_pi05.py <exported folder> <inputs.npz> <answers.npz>

LeRobot's code is not changed, but for two things. It knows only the published sizes, so the functions that give it
sizes are replaced. And it pads images in [0, 1] by -1, which is black only in [-1, 1] (its issue 2218), so the images
are mapped to [-1, 1] around its own function.

``inputs.npz`` holds ``instructions`` [n], ``state`` [n, S], ``noise`` [n, H, Amax], ``actions`` [n, H, A], ``times``
[n], and under the name of each camera its images, uint8 [n, h, w, 3]. ``answers.npz`` has ``tokens`` [n, I], ``chunks``
[n, H, A] and ``loss`` [].
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.policies.pi05 import modeling_pi05
from lerobot.policies.pi05.processor_pi05 import Pi05PrepareStateTokenizerProcessorStep  # registers itself
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from transformers import PreTrainedTokenizerFast

assert Pi05PrepareStateTokenizerProcessorStep
PUBLISHED = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}


def use_sizes(vlm: dict[str, Any]) -> None:
    """Give LeRobot the sizes of a small model in place of the published ones."""
    by_variant = {"gemma_2b": vlm["text_config"], "gemma_300m": vlm["expert_config"]}
    build_paligemma, build_gemma = modeling_pi05.PaliGemmaForConditionalGeneration, modeling_pi05.GemmaForCausalLM

    def gemma_config(variant: str) -> Any:
        sizes = by_variant[variant]
        return modeling_pi05.GemmaConfig(
            width=sizes["hidden_size"],
            depth=sizes["num_hidden_layers"],
            mlp_dim=sizes["intermediate_size"],
            num_heads=sizes["num_attention_heads"],
            num_kv_heads=sizes["num_key_value_heads"],
            head_dim=sizes["head_dim"],
        )

    def paligemma(config: Any) -> Any:
        config.text_config.vocab_size = config._vocab_size = vlm["text_config"]["vocab_size"]
        config.image_token_index = vlm["text_config"]["vocab_size"]
        config.projection_dim = config.vision_config.projection_dim = vlm["projection_dim"]
        for name, value in vlm["vision_config"].items():
            if name != "model_type":
                setattr(config.vision_config, name, value)
        return build_paligemma(config=config)

    def gemma(config: Any) -> Any:
        config.vocab_size = vlm["expert_config"]["vocab_size"]
        return build_gemma(config=config)

    modeling_pi05.get_gemma_config = gemma_config
    modeling_pi05.PaliGemmaForConditionalGeneration, modeling_pi05.GemmaForCausalLM = paligemma, gemma


def pad_by_black() -> None:
    resize = modeling_pi05.resize_with_pad_torch
    modeling_pi05.resize_with_pad_torch = lambda images, *size: (resize(images * 2 - 1, *size) + 1) / 2


def load_policy(folder: Path) -> Any:
    """Return LeRobot's policy, its weights read by LeRobot's own loader, which must miss none."""
    use_sizes(json.loads((folder / "vlm" / "config.json").read_text()))
    pad_by_black()
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder, place, dirs_exist_ok=True)
        config = Path(place) / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **PUBLISHED, "device": "cpu"}))
        policy = modeling_pi05.PI05Policy.from_pretrained(place)
    return policy.eval()


def main(folder: Path, inputs: Path, answers: Path) -> None:
    """Write the answers for the inputs."""
    policy, given = load_policy(folder), dict(np.load(inputs))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "vlm")
    before = PolicyProcessorPipeline.from_pretrained(
        folder, "policy_preprocessor.json", overrides={"tokenizer_processor": {"tokenizer": tokenizer}}
    )
    after = PolicyProcessorPipeline.from_pretrained(
        folder,
        "policy_postprocessor.json",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    names = [name for name in policy.config.input_features if name.startswith("observation.images.")]
    images = {name: torch.from_numpy(given[name.split(".")[-1]]).permute(0, 3, 1, 2) / 255 for name in names}
    state, noise, times = (torch.from_numpy(given[name]) for name in ("state", "noise", "times"))
    batch = {**images, "observation.state": state, "action": torch.from_numpy(given["actions"])}
    batch = before({**batch, "task": [str(each) for each in given["instructions"]]})
    policy.model.sample_noise = lambda shape, device: noise
    policy.model.sample_time = lambda size, device: times
    with torch.inference_mode():
        chunks = after(policy.predict_action_chunk(batch))
        loss, _ = policy.forward(batch)
    tokens = batch["observation.language.tokens"]
    np.savez(answers, tokens=tokens.numpy(), chunks=chunks.numpy(), loss=loss.numpy())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

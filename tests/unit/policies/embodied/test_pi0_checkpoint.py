from pathlib import Path

import numpy as np
import pi0_models
import pytest
import torch
from acting_models import assert_weights_refused
from flow_vla_models import assert_refused, write_checkpoint
from pi0_models import FEATURES, HEAD, PREFIX, WORDS
from safetensors.torch import load_file, save_file
from spoiled_files import rewritten

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description, check_checkpoint
from embodyflow.policies.embodied.flow_vla.paligemma_layout_flow_vla import DEFAULTS
from embodyflow.policies.embodied.pi0.checkpoint_pi0 import LAYOUT
from embodyflow.policies.embodied.pi0.modeling_pi0 import PI0
from embodyflow.policies.embodied.pi0.policy_pi0 import PI0Policy
from embodyflow.policies.pretrained import checkpoints
from embodyflow.policies.pretrained.weights_match import check_weights_match

EXPERT_HEAD = f"{PREFIX}gemma_expert.lm_head.weight"


def test_the_published_model_has_the_published_parameters() -> None:
    config = pi0_models.new_config(scratch=None, path="lerobot/pi0_base")
    vlm, _ = LAYOUT.find_vlm("policy.path", config, Path(), {**DEFAULTS, **FEATURES})
    with torch.device("meta"):
        model = PI0(Description({**DEFAULTS, **FEATURES}, vlm, {}, None, None), train_expert_only=True)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    vision = f"{PREFIX}paligemma.model.vision_tower.vision_model"
    for name, shape in {
        "model.state_proj.weight": (1024, 32),
        "model.action_in_proj.weight": (1024, 32),
        "model.action_out_proj.weight": (32, 1024),
        "model.action_time_mlp_in.weight": (1024, 2048),
        WORDS: (257152, 2048),
        f"{PREFIX}paligemma.model.language_model.layers.17.self_attn.k_proj.weight": (256, 2048),
        f"{PREFIX}paligemma.model.language_model.layers.17.mlp.gate_proj.weight": (16384, 2048),
        f"{PREFIX}paligemma.model.multi_modal_projector.linear.weight": (2048, 1152),
        f"{vision}.embeddings.position_embedding.weight": (256, 1152),
        f"{vision}.encoder.layers.26.mlp.fc1.weight": (4304, 1152),
        f"{vision}.post_layernorm.weight": (1152,),
        f"{PREFIX}gemma_expert.model.layers.17.self_attn.q_proj.weight": (2048, 1024),
        f"{PREFIX}gemma_expert.model.layers.17.mlp.down_proj.weight": (1024, 4096),
        f"{PREFIX}gemma_expert.model.norm.weight": (1024,),
    }.items():
        assert shapes[name] == shape, name
    # LeRobot's PI0Pytorch has 778 weights of the same names and shapes, two of them unused heads.
    assert len([name for name in shapes if not name.startswith("statistics")]) == 776
    sizes = [(value.numel(), value.requires_grad) for value in model.parameters()]
    assert sum(size for size, _ in sizes) == 3_238_048_528, "3.3 B, says the paper"
    assert sum(size for size, trained in sizes if trained) == 314_713_120, "300 M of them the expert's"


def test_the_published_base_loads_despite_its_other_names(tmp_path: Path) -> None:
    config = write_checkpoint(pi0_models, tmp_path)
    expected = PI0Policy(config, "cpu").model.state_dict()
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    kept = {name.removeprefix("model."): value for name, value in state.items() if name != WORDS}
    save_file(kept, file)
    check_weights_match(config)
    for name, value in PI0Policy(config, "cpu").model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    save_file({name: value for name, value in state.items() if name not in (WORDS, HEAD)}, file)
    assert_weights_refused(config, f"the weights lack {WORDS}, and 0 more")


def test_an_export_has_the_heads_that_lerobot_expects(tmp_path: Path) -> None:
    write_checkpoint(pi0_models, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(state[HEAD].float(), state[WORDS].float())
    assert state[EXPERT_HEAD].shape == (len(state[WORDS]), 32) and not state[EXPERT_HEAD].any()


SPOILED = {
    "sizes that there are not": (
        rewritten("config.json", lambda config: config.update(action_expert_variant="gemma_7b")),
        {},
        "its paligemma_variant is 'scratch'; allowed is gemma_2b",
    ),
    "an expert that there is not": (
        rewritten(
            "config.json", lambda config: config.update(paligemma_variant="gemma_2b", action_expert_variant="gemma_7b")
        ),
        {},
        "its action_expert_variant is 'gemma_7b'; allowed is gemma_2b or gemma_300m",
    ),
    "times drawn otherwise": (
        rewritten("config.json", lambda config: config.update(time_sampling_beta_alpha=1.0)),
        {},
        "its time_sampling_beta_alpha is 1.0; allowed is 1.5",
    ),
    "images that are no squares": (
        rewritten("config.json", lambda config: config.update(image_resolution=[32, 48])),
        {},
        r"its image_resolution must be square, not \[32, 48\]",
    ),
    "another language model": (
        rewritten("vlm/config.json", lambda config: config.update(model_type="smolvlm")),
        {},
        "its vlm/config.json must be a PaliGemma's, with model_type 'paligemma'",
    ),
    "no features": (
        rewritten("config.json", lambda config: config.pop("input_features")),
        {},
        "policy.state_dim=5: the checkpoint's observation.state has no size in its config.json",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_unusable_checkpoint_is_refused_before_it_is_loaded(tmp_path: Path, case: str) -> None:
    assert_refused(pi0_models, tmp_path, *SPOILED[case])


def test_a_published_model_needs_a_tokenizer_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(name: str, **patterns: list[str]) -> str:
        raise OSError(f"401: access to {name} is restricted")

    monkeypatch.setattr(checkpoints, "snapshot_download", gated)
    config = write_checkpoint(pi0_models, tmp_path)
    published = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
    rewritten("config.json", lambda described: described.update(published))(tmp_path)
    tokenizer = (tmp_path / "vlm").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"its vision-language model google/paligemma-3b-pt-224: .* 401: access"):
        check_checkpoint(LAYOUT, config)
    check_checkpoint(LAYOUT, config.model_copy(update={"tokenizer": str(tokenizer)}))

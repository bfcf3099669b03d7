"""Manager that scores responses with a reward model."""

from collections.abc import Sequence

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from embodyflow.errors import ConfigError, RewardError
from embodyflow.policies.pretrained.whole_models import load_whole
from embodyflow.rewards.interface import Sample, Score, check_score
from embodyflow.rewards.reward_config import ModelConfig


class ModelRewardManager:
    """Scores samples in batches with a sequence classifier of ``transformers``, whose single output is the reward.

    Raises:
        ConfigError: The model cannot be loaded or does not have exactly one output.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(config.path)
            kind, dtype = AutoModelForSequenceClassification, getattr(torch, config.dtype)
            model = load_whole(kind, config.path, f"manager.path={config.path}", dtype=dtype)
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"manager.path={config.path}: cannot be loaded: {reason}") from error
        if model.config.num_labels != 1:
            raise ConfigError(f"manager.path={config.path}: has {model.config.num_labels} outputs; allowed is one")
        self._tokenizer.padding_side = "right"
        model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model = model.to(config.device).eval()

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample."""
        size = self._config.batch_size
        batches = [samples[start : start + size] for start in range(0, len(samples), size)]
        return [score for batch in batches for score in self._score_batch(batch)]

    @torch.inference_mode()
    def _score_batch(self, samples: Sequence[Sample]) -> list[Score]:
        config = self._config
        # replace, not format: a prompt or response may contain braces
        before, _, after = config.template.replace("{prompt}", "\0").partition("{response}")
        texts = [
            before.replace("\0", sample.prompt) + sample.response + after.replace("\0", sample.prompt)
            for sample in samples
        ]
        inputs = self._tokenizer(texts, padding=True, return_tensors="pt").to(config.device)
        for sample, length in zip(samples, inputs["attention_mask"].sum(1).tolist(), strict=True):
            if length > config.max_tokens:
                raise RewardError(
                    sample.uid,
                    f"the input of the reward model has {length} tokens; allowed are max_tokens={config.max_tokens}",
                )
        rewards = self._model(**inputs).logits.squeeze(-1).float().tolist()
        return [
            check_score(Score(reward, reward > config.correct_above), sample.uid)
            for sample, reward in zip(samples, rewards, strict=True)
        ]

    def close(self) -> None:
        """Do nothing; this manager starts no processes."""

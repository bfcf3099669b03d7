"""What an algorithm is made of, chosen by one field each."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embodyflow.algorithms.algorithm_registry import ADVANTAGES, LOSSES

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]

Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
KLEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class KLConfig(_Config):
    """The KL term that holds the policy near the reference (:mod:`embodyflow.algorithms.kl`).

    Attributes:
        coef: its coefficient, the initial one if adaptive; 0 turns the term and the reference policy off.
        estimator: of the divergence; ``+`` gives it the gradient of ``k2`` (straight-through).
        placement: added to the loss, or subtracted from the rewards by a node of the pipeline before its advantages.
        target: divergence per token that the adaptive controller steers to; ``null`` keeps the coefficient fixed.
        measured_share: of the rows, whose distance to the reference is measured where ``coef`` is 0; what the reference
            says of the others is NaN.
        horizon: rows over which the controller changes the coefficient by a fifth where the divergence is far off.
    """

    coef: NonNegative = 0.0
    estimator: KLEstimator = "k3"
    placement: Literal["loss", "reward"] = "loss"
    target: Positive | None = None
    measured_share: Fraction = 1.0
    horizon: Annotated[int, Field(ge=1)] = 10_000

    @model_validator(mode="after")
    def _fits(self) -> "KLConfig":
        if self.placement == "reward" and self.estimator.endswith("+"):
            raise ValueError(
                f"estimator={self.estimator} differs in its gradient only and a reward has none; "
                "allowed with placement=reward are k1, k2, k3, abs"
            )
        if self.placement == "reward" and self.coef == 0:
            raise ValueError("placement=reward subtracts coef × KL from the rewards, so coef must be > 0")
        if self.target is not None and self.coef == 0:
            raise ValueError("target adapts coef by factors, so coef must be > 0")
        if self.target is None and self.horizon != type(self).model_fields["horizon"].default:
            raise ValueError(f"horizon={self.horizon} is of the controller that steers to a target, and target is null")
        return self


class CPGDConfig(_Config):
    """CPGD's own numbers.

    Attributes:
        weight: of the centred score: ``std`` divides by the group's deviation, ``naive`` does nothing,
            ``clip_filter`` multiplies by number of groups ÷ number of groups with a signal.
        max_weight: upper bound of the ``clip_filter`` weight.
        drift_coef: of the policy drift; 0 turns it off.
        max_drift: upper bound of the drift's ratio − 1.
    """

    weight: Literal["std", "naive", "clip_filter"] = "std"
    max_weight: Annotated[float, Field(ge=1)] = 3.0
    drift_coef: NonNegative = 0.0
    max_drift: Positive = 2.0


class CovarianceConfig(_Config):
    """Which tokens clip_cov and kl_cov treat apart, and how.

    Attributes:
        fraction: of the mini-batch's tokens that are selected, at most.
        low, high: clip_cov draws from tokens whose covariance lies strictly between.
        kl_coef: of kl_cov's penalty on selected tokens.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4
    low: NonNegative = 1.0
    high: Positive = 5.0
    kl_coef: NonNegative = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> "CovarianceConfig":
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be less than high={self.high}")
        return self


class OverlongConfig(_Config):
    """DAPO's soft punishment of overlong responses.

    Attributes:
        buffer: tokens before the limit over which the penalty grows.
        penalty: its size at the limit.
    """

    buffer: Annotated[int, Field(ge=1)] = 512
    penalty: NonNegative = 1.0


class AlgorithmConfig(_Config):
    """The algorithm, term by term.

    Attributes:
        advantage: a registered estimator or ``"module:function"``.
        gamma, lam: discount and GAE's λ, per token (per decision where the caller passes decisions).
        whiten: give advantages mean 0 and variance 1: ``batch`` those of GAE over the batch, ``minibatch`` any over
            each mini-batch as it is trained on (Huang et al. 2022, "The 37 Implementation Details of PPO", number 7).
        loss: a registered policy loss or ``"module:function"``.
        clip_low, clip_high: the ratio's range is [1 − clip_low, 1 + clip_high]; clip-higher (DAPO) is
            clip_high=0.28. Of gmpo the log-ratio's range [−clip_low, clip_high].
        clip_ratio_c: dual clip's bound on the ratio where the advantage is negative (ppo only); ``null`` turns it off.
        aggregation: how the tokens' losses become one (:mod:`embodyflow.algorithms.aggregation`).
        old_log_probs: what the ratio is taken to: ``recomputed`` by the trainer before its first step, or ``recorded``
            when the rows were sampled, which spares a pass over them: the trainer recomputes some for parity alone.
            Rows of an earlier version of the policy keep those recorded in both. ``proximal`` is recomputed for these
            too, and a token counts for as much as the trainer holds it more probable than the policy that acted
            (:mod:`embodyflow.algorithms.behavior`).
        max_behavior_weight: bound on what a token counts for with ``proximal``.
        entropy_coef: of the entropy bonus; 0 turns it off.
        value_clip: how far the new value may move from the old one; ``null`` turns clipping off.
        kl, cpgd, covariance: the terms of their names.
    """

    advantage: str = "grpo"
    gamma: Fraction = 1.0
    lam: Fraction = 1.0
    whiten: Literal["batch", "minibatch"] | None = "batch"
    loss: str = "ppo"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Positive = 0.2
    clip_ratio_c: Annotated[float, Field(gt=1)] | None = 3.0
    aggregation: Aggregation = "token_mean"
    old_log_probs: Literal["recomputed", "recorded", "proximal"] = "recomputed"
    max_behavior_weight: Annotated[float, Field(ge=1)] = 5.0
    entropy_coef: NonNegative = 0.0
    value_clip: Positive | None = 0.5
    kl: KLConfig = KLConfig()
    cpgd: CPGDConfig = CPGDConfig()
    covariance: CovarianceConfig = CovarianceConfig()

    @field_validator("advantage")
    @classmethod
    def _advantage_exists(cls, name: str) -> str:
        ADVANTAGES.resolve(name)
        return name

    @field_validator("loss")
    @classmethod
    def _loss_exists(cls, name: str) -> str:
        LOSSES.resolve(name)
        return name

    @model_validator(mode="after")
    def _belong_together(self) -> "AlgorithmConfig":
        estimator, loss = ADVANTAGES.resolve(self.advantage), LOSSES.resolve(self.loss)
        if estimator.losses is not None and self.loss not in estimator.losses:
            allowed = ", ".join(estimator.losses)
            raise ValueError(f"advantage={self.advantage} does not belong with loss={self.loss}; allowed: {allowed}")
        if loss.per_row and not estimator.per_row:
            allowed = ", ".join(
                name
                for name, entry in ADVANTAGES.entries.items()
                if entry.per_row and (entry.losses is None or self.loss in entry.losses)
            )
            raise ValueError(
                f"loss={self.loss} needs one advantage per row, advantage={self.advantage} gives others; "
                f"allowed: {allowed}"
            )
        default = type(self).model_fields["max_behavior_weight"].default
        if self.old_log_probs != "proximal" and self.max_behavior_weight != default:
            raise ValueError(
                f"max_behavior_weight={self.max_behavior_weight:g} is of old_log_probs=proximal, and "
                f"old_log_probs is {self.old_log_probs}"
            )
        if loss.per_row and self.aggregation != "seq_mean_token_mean":
            raise ValueError(
                f"loss={self.loss} is one number per row, so aggregation={self.aggregation} does not fit; "
                "allowed: seq_mean_token_mean"
            )
        return self

    @property
    def needs_critic(self) -> bool:
        """Whether the advantage needs values."""
        return ADVANTAGES.resolve(self.advantage).needs_values

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the advantage takes sums over all rows, whichever ranks hold them."""
        counts_groups = self.advantage == "cpgd" and self.cpgd.weight == "clip_filter"
        return ADVANTAGES.resolve(self.advantage).needs_whole_batch or counts_groups

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy's log-probs are read."""
        return self.kl.coef > 0

    @property
    def has_kl_loss(self) -> bool:
        """Whether the KL term is a part of the loss."""
        return self.kl.coef > 0 and self.kl.placement == "loss"

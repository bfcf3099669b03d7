"""The configuration of an algorithm: one field per term."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embodyflow.algorithms.algorithm_registry import ADVANTAGES, LOSSES, Estimator, PolicyLoss

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]

Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
KLEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class KLConfig(_Config):
    """The KL term that keeps the policy near the reference (:mod:`embodyflow.algorithms.kl`).

    Attributes:
        coef: Coefficient, the initial one if it changes. 0 turns the term and the reference policy off.
        final_coef: Coefficient that ``coef`` moves to over the run, by equal steps; ``null`` keeps it.
        refresh_every: Number of iterations after which the policy of the moment becomes the reference; ``null`` keeps
            the policy that RL started from.
        estimator: Estimator of the divergence; ``+`` gives it the gradient of ``k2`` (straight-through).
        placement: Whether the term is added to the loss, or subtracted from the rewards by a node of the pipeline
            before the advantages.
        target: Divergence per token that the adaptive controller steers to; ``null`` keeps the coefficient fixed.
        measured_share: Share of the rows whose distance to the reference is measured if ``coef`` is 0; the others have
            NaN as reference log-probs.
        horizon: Number of rows over which the controller changes the coefficient by a fifth if the divergence is far
            from its target.
    """

    coef: NonNegative = 0.0
    final_coef: NonNegative | None = None
    refresh_every: Annotated[int, Field(ge=1)] | None = None
    estimator: KLEstimator = "k3"
    placement: Literal["loss", "reward"] = "loss"
    target: Positive | None = None
    measured_share: Fraction = 1.0
    horizon: Annotated[int, Field(ge=1)] = 10_000

    @model_validator(mode="after")
    def _check_terms(self) -> "KLConfig":
        if self.placement == "reward" and self.estimator.endswith("+"):
            raise ValueError(
                f"estimator={self.estimator} differs in its gradient only and a reward has none; "
                "allowed with placement=reward are k1, k2, k3, abs"
            )
        if self.placement == "reward" and self.coef == 0:
            raise ValueError("placement=reward subtracts coef × KL from the rewards, so coef must be > 0")
        if self.target is not None and self.coef == 0:
            raise ValueError("target adapts coef by factors, so coef must be > 0")
        self._check_changes()
        if self.target is None and self.horizon != type(self).model_fields["horizon"].default:
            raise ValueError(f"horizon={self.horizon}: only used with a target, and target is null")
        return self

    @property
    def changes_coef(self) -> bool:
        """Whether the coefficient differs from iteration to iteration."""
        return self.target is not None or self.final_coef is not None

    def annealed_coef(self, iteration: int, iterations: int) -> float:
        """Return ``coef`` in the first iteration, ``final_coef`` in the last, and equal steps between.

        A falling coefficient takes regularised play to an equilibrium (Sokota et al. 2023, "A unified approach to
        reinforcement learning, quantal response equilibria, and two-player zero-sum games", arXiv:2206.05825,
        section 4).

        Args:
            iteration: Index of the iteration, from 1; after the last one the coefficient stays.
            iterations: Number of iterations in which the coefficient changes.
        """
        if self.final_coef is None:
            return self.coef
        done = min(iteration - 1, iterations - 1) / max(iterations - 1, 1)
        return self.coef + done * (self.final_coef - self.coef)

    def refreshes(self, iteration: int) -> bool:
        """Return True if the policy becomes the reference after an iteration, from 1."""
        return self.refresh_every is not None and iteration % self.refresh_every == 0

    def _check_changes(self) -> None:
        if self.final_coef is not None and self.coef == 0:
            raise ValueError(f"final_coef={self.final_coef:g}: only used with coef > 0, which turns the term on")
        if self.final_coef is not None and self.target is not None:
            raise ValueError("final_coef and target both change coef; set one of them to null")
        if self.refresh_every is not None and self.coef == 0:
            raise ValueError(f"refresh_every={self.refresh_every}: only used with coef > 0, which needs a reference")


class CPGDConfig(_Config):
    """Settings of CPGD.

    Attributes:
        weight: Weight of the centred score: ``std`` divides by the group's deviation, ``naive`` does nothing,
            ``clip_filter`` multiplies by number of groups ÷ number of groups with a signal.
        max_weight: Upper bound of the ``clip_filter`` weight.
        drift_coef: Coefficient of the policy drift; 0 turns it off.
        max_drift: Upper bound of the drift's ratio − 1.
    """

    weight: Literal["std", "naive", "clip_filter"] = "std"
    max_weight: Annotated[float, Field(ge=1)] = 3.0
    drift_coef: NonNegative = 0.0
    max_drift: Positive = 2.0


class _Band(_Config):
    low: NonNegative
    high: Positive

    @model_validator(mode="after")
    def _check_order(self) -> "_Band":
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be less than high={self.high}")
        return self


class CovarianceConfig(_Band):
    """Settings of clip_cov and kl_cov, which treat selected tokens differently.

    Attributes:
        fraction: Largest share of the mini-batch's tokens that is selected.
        low, high: Bounds of the covariance, both exclusive, between which clip_cov draws tokens.
        kl_coef: Coefficient of kl_cov's penalty on selected tokens.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4
    low: NonNegative = 1.0
    high: Positive = 5.0
    kl_coef: NonNegative = 1.0


class SAPOConfig(_Config):
    """Settings of SAPO.

    Attributes:
        tau_positive, tau_negative: Temperature of the gate where the advantage is positive, and elsewhere. A larger one
            takes tokens away from the old policy out of the gradient sooner.
    """

    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05


class RejectionConfig(_Band):
    """Rejection of tokens that the behavior policy sampled too differently (:mod:`embodyflow.algorithms.behavior`).

    Attributes:
        level: ``token`` compares each token's π_prox / π_behavior with the bounds, ``sequence`` the geometric mean over
            the row, which is kept or rejected whole; ``null`` rejects nothing.
        low, high: Bounds, both included.
    """

    level: Literal["token", "sequence"] | None = None
    low: NonNegative = 0.5
    high: Positive = 2.0


class OverlongConfig(_Config):
    """DAPO's soft punishment of overlong responses.

    Attributes:
        buffer: Number of tokens before the limit over which the penalty grows.
        penalty: Penalty at the limit.
    """

    buffer: Annotated[int, Field(ge=1)] = 512
    penalty: NonNegative = 1.0


class AlgorithmConfig(_Config):
    """The algorithm, term by term.

    Attributes:
        advantage: Registered estimator, or ``"module:function"``.
        gamma, lam: Discount and GAE's λ, per decision, or per action with ``critic.level=action``.
        turn_discount: Discount between the turns of an agent, on top of gamma. With it a row's score is the discounted
            sum of its turns' rewards.
        per_turn: Whether an agent's turn has its own advantage (:mod:`embodyflow.algorithms.credit.turns`): grpo,
            dr_grpo and rloo compare the returns of siblings from that turn on, and gae takes turns as steps instead of
            tokens.
        per_agent: Whether the tokens of each agent are a row of their own to the estimator
            (:mod:`embodyflow.algorithms.credit.agents`): an agent's outcome is compared with those of the same agent in
            the sibling episodes, never with another agent's.
        baseline_decay: Weight of the earlier average in the running baseline of an agent (rae only); the newest outcome
            has the rest.
        whiten: Whether advantages get mean 0 and variance 1: ``batch`` whitens those of GAE over the batch,
            ``minibatch`` those of any estimator over each mini-batch (Huang et al. 2022, "The 37 Implementation Details
            of PPO", number 7).
        loss: Registered policy loss, or ``"module:function"``.
        clip_low, clip_high: Range of the ratio, [1 − clip_low, 1 + clip_high]; clip-higher (DAPO) is clip_high=0.28.
            For gmpo the range of the log-ratio, [−clip_low, clip_high]. For cispo clip_low is 1 unless it is set, which
            is no lower bound; the other losses need less than 1.
        clip_ratio_c: Bound of dual clip on the ratio where the advantage is negative (ppo only); ``null`` turns it off.
        aggregation: Aggregation of the tokens' losses (:mod:`embodyflow.algorithms.aggregation`).
        old_log_probs: Log-probs in the denominator of the ratio. ``recomputed`` has the trainer compute them before its
            first step. ``recorded`` takes those from sampling and saves a pass: the trainer recomputes only a few, to
            check parity. With both, rows of an earlier version of the policy keep theirs. ``proximal`` recomputes all,
            and weights each token by π_prox / π_behavior (:mod:`embodyflow.algorithms.behavior`). ``interpolated`` does
            the same with log-probs of π_prox that it interpolates, which saves the pass as ``recorded`` does.
        max_behavior_weight: Upper bound of that weight.
        top_entropy_fraction: Share of a mini-batch's tokens that have a policy loss, those of the highest entropy
            before the first step; 1 is all (:func:`embodyflow.algorithms.selection.top_entropy_tokens`).
        entropy_coef: Coefficient of the entropy bonus; 0 turns it off.
        value_clip: Largest distance of a new value from the old one; ``null`` turns clipping off.
        pass_k: Number of rows of which the best counts (pass_at_k only).
        kl, cpgd, covariance, sapo, rejection: Settings of these terms.
    """

    advantage: Annotated[str, Field(examples=list(ADVANTAGES.entries))] = "grpo"
    gamma: Fraction = 1.0
    lam: Fraction = 1.0
    turn_discount: Fraction = 1.0
    per_turn: bool = False
    per_agent: bool = False
    baseline_decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    whiten: Literal["batch", "minibatch"] | None = "batch"
    loss: Annotated[str, Field(examples=list(LOSSES.entries))] = "ppo"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    clip_high: Positive = 0.2
    clip_ratio_c: Annotated[float, Field(gt=1)] | None = 3.0
    aggregation: Aggregation = "token_mean"
    old_log_probs: Literal["recomputed", "recorded", "proximal", "interpolated"] = "recomputed"
    max_behavior_weight: Annotated[float, Field(ge=1)] = 5.0
    top_entropy_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    entropy_coef: NonNegative = 0.0
    value_clip: Positive | None = 0.5
    pass_k: Annotated[int, Field(ge=1)] = 4
    kl: KLConfig = KLConfig()
    cpgd: CPGDConfig = CPGDConfig()
    covariance: CovarianceConfig = CovarianceConfig()
    sapo: SAPOConfig = SAPOConfig()
    rejection: RejectionConfig = RejectionConfig()

    @model_validator(mode="before")
    @classmethod
    def _default_of_cispo(cls, settings: object) -> object:
        """Leave the lower bound out for cispo, as its paper does, unless it is set."""
        if isinstance(settings, dict) and settings.get("loss") == "cispo":
            return {"clip_low": 1.0} | settings
        return settings

    @field_validator("advantage", mode="before")
    @classmethod
    def _check_advantage(cls, name: object) -> object:
        ADVANTAGES.resolve(name)
        return name

    @field_validator("loss", mode="before")
    @classmethod
    def _check_loss(cls, name: object) -> object:
        LOSSES.resolve(name)
        return name

    @model_validator(mode="after")
    def _check_combination(self) -> "AlgorithmConfig":
        estimator, loss = ADVANTAGES.resolve(self.advantage), LOSSES.resolve(self.loss)
        if estimator.losses is not None and self.loss not in estimator.losses:
            allowed = ", ".join(estimator.losses)
            raise ValueError(f"advantage={self.advantage} does not belong with loss={self.loss}; allowed: {allowed}")
        self._check_turns(estimator, loss)
        if loss.per_row and not estimator.per_row:
            allowed = ", ".join(
                name
                for name, entry in ADVANTAGES.entries.items()
                if entry.per_row and (entry.losses is None or self.loss in entry.losses)
            )
            raise ValueError(
                f"loss={self.loss} needs one advantage per row, and advantage={self.advantage} has one per token; "
                f"allowed: {allowed}"
            )
        if self.clip_low == 1 and self.loss != "cispo":
            raise ValueError("clip_low=1: must be less than 1; 1 is no lower bound and allowed with loss=cispo")
        if self.old_log_probs in ("recorded", "interpolated") and self.top_entropy_fraction < 1:
            raise ValueError(
                f"top_entropy_fraction={self.top_entropy_fraction:g}: needs the entropies of all tokens, which "
                f"old_log_probs={self.old_log_probs} does not compute; allowed are recomputed and proximal"
            )
        if not self.is_decoupled and self.rejection.level is not None:
            raise ValueError(
                f"rejection.level={self.rejection.level}: only used with old_log_probs=proximal, and "
                f"old_log_probs is {self.old_log_probs}"
            )
        default = type(self).model_fields["max_behavior_weight"].default
        if not self.is_decoupled and self.max_behavior_weight != default:
            raise ValueError(
                f"max_behavior_weight={self.max_behavior_weight:g}: only used with old_log_probs=proximal, and "
                f"old_log_probs is {self.old_log_probs}"
            )
        if loss.per_row and self.aggregation != "seq_mean_token_mean":
            raise ValueError(
                f"loss={self.loss} is one number per row, so aggregation={self.aggregation} does not fit; "
                "allowed: seq_mean_token_mean"
            )
        return self

    def _check_turns(self, estimator: Estimator, loss: PolicyLoss) -> None:
        if self.reads_turns and not estimator.reads_turns:
            allowed = ", ".join(name for name, entry in ADVANTAGES.entries.items() if entry.reads_turns)
            raise ValueError(f"{self.turn_setting}: advantage={self.advantage} knows no turns; allowed: {allowed}")
        if self.per_turn and loss.per_row:
            raise ValueError(f"per_turn=true: loss={self.loss} needs one advantage per row; allowed with it is false")
        if self.per_agent and loss.per_row:
            raise ValueError(f"per_agent=true: loss={self.loss} needs one advantage per row; allowed with it is false")
        if self.per_agent and estimator.needs_baseline:
            raise ValueError(
                f"per_agent=true: advantage={self.advantage} compares with one greedy reward for all agents; allowed "
                "with it is false"
            )
        if self.per_agent and estimator.chains_agents:
            raise ValueError(
                f"per_agent=true: advantage={self.advantage} is one chain over all agents; allowed with it is false"
            )
        if estimator.keeps_baselines and not self.per_agent:
            raise ValueError(
                f"advantage={self.advantage}: needs per_agent=true, since it keeps a baseline for each agent"
            )
        if not estimator.keeps_baselines and self.baseline_decay != type(self).model_fields["baseline_decay"].default:
            raise ValueError(
                f"baseline_decay={self.baseline_decay:g}: only used with advantage=rae, and advantage is "
                f"{self.advantage}"
            )
        if self.per_turn and self.gamma != 1:
            raise ValueError(f"gamma={self.gamma:g}: must be 1 with per_turn=true, which discounts by turn_discount")

    @property
    def is_decoupled(self) -> bool:
        """Whether tokens are weighted by π_prox / π_behavior."""
        return self.old_log_probs in ("proximal", "interpolated")

    @property
    def reads_turns(self) -> bool:
        """Whether the advantage depends on an agent's turns."""
        return self.per_turn or self.turn_discount != 1

    @property
    def turn_setting(self) -> str:
        """The setting that makes the advantage depend on turns, for messages."""
        return "per_turn=true" if self.per_turn else f"turn_discount={self.turn_discount:g}"

    @property
    def needs_critic(self) -> bool:
        """Whether the advantage needs values."""
        return ADVANTAGES.resolve(self.advantage).needs_values

    @property
    def needs_baseline(self) -> bool:
        """Whether the advantage needs the reward of a greedy row of each group."""
        return ADVANTAGES.resolve(self.advantage).needs_baseline

    @property
    def keeps_baselines(self) -> bool:
        """Whether the advantage needs the running baselines of agents, which the trainer keeps."""
        return ADVANTAGES.resolve(self.advantage).keeps_baselines

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the advantage takes sums over the rows of all ranks."""
        counts_groups = self.advantage == "cpgd" and self.cpgd.weight == "clip_filter"
        return ADVANTAGES.resolve(self.advantage).needs_whole_batch or counts_groups

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy's log-probs are read."""
        return self.kl.coef > 0

    @property
    def has_kl_loss(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl.coef > 0 and self.kl.placement == "loss"

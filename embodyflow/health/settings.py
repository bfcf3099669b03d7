"""The configuration of health: the detectors, their thresholds, and what a finding does."""

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from embodyflow.durations import MOST_SECONDS
from embodyflow.health.detector_registry import check_detector

Positive = Annotated[float, Field(gt=0)]
Above1 = Annotated[float, Field(gt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
NAMES = r"^[a-z][a-z0-9_]*$"
"""Names of a user's own detectors, which become parts of metrics and events."""

NEAR_USUAL = 10.0
"""Multiple of the usual KL of a step that is allowed on probation, as of a rate that is three times too high."""

FACTORS = {"trainer.learning_rate": 0.5}


class _Config(BaseModel):
    """Base of these models: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DetectorConfig(_Config):
    """What a finding of a detector does.

    Attributes:
        action: Consequence of a finding. ``notify`` reports it; ``pause`` reports it and asks a person; ``roll_back``
            returns to an earlier commit and goes on with changed keys; ``cancel`` ends the run. ``null`` turns the
            detector off.
        changes: Factors of keys that a roll-back changes, by key.
    """

    action: Literal["notify", "pause", "roll_back", "cancel"] | None = None
    changes: Annotated[dict[str, Positive], Field(min_length=1)] = FACTORS

    def on_probation(self) -> Self:
        """Return the section that holds for some iterations after a roll-back, with stricter thresholds if any."""
        return self


class TimedDetectorConfig(_Config):
    """What a finding of a detector of times and faults does. A repeated iteration has other ones.

    Attributes:
        action: Consequence of a finding; see the other detectors. A roll-back is not among them, since it repeats only
            what does not depend on timing. ``null`` turns the detector off.
    """

    action: Literal["notify", "pause", "cancel"] | None = None


class NaNConfig(_Config):
    """NaN or inf in a loss, a gradient or the entropy. The optimizer step that would spread it is skipped.

    Attributes:
        action: Consequence of a finding. Nothing can go on with NaN: ``cancel`` ends the run, and ``roll_back`` returns
            to an earlier commit. ``null`` lets the failed step end the run without a finding.
        changes: Factors of keys that a roll-back changes, by key.
    """

    action: Literal["roll_back", "cancel"] | None = "cancel"
    changes: Annotated[dict[str, Positive], Field(min_length=1)] = FACTORS


class SpikeConfig(DetectorConfig):
    """A gradient norm, or the critic's loss, far above its recent values.

    Attributes:
        factor: Multiple of the median of the window that counts as a spike.
        window: Number of iterations before the newest that it is compared with; three suffice at the start.
    """

    factor: Above1 = 5.0
    window: Annotated[int, Field(ge=3, strict=True)] = 10


class EntropyCollapseConfig(DetectorConfig):
    """The policy has become almost deterministic and explores no more.

    Attributes:
        share: Share of the first iterations' entropy below which it has collapsed.
        max_fall: Fall in nats from the first iterations' entropy, in the place of ``share``. Policies of continuous
            actions need it, because the entropy of a density may be negative.
        baseline: Number of first iterations whose median entropy is the reference.
        patience: Number of iterations in a row that must be below.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    max_fall: Positive | None = None
    baseline: Count = 5
    patience: Count = 3


class KLRunawayConfig(DetectorConfig):
    """The policy moves too far: in one iteration, or from its reference.

    A step's KL grows with the square of the learning rate, and the limit is many times what is usual. So a roll-back
    lowers the rate until a step should be usual again, and after a roll-back a step must be near that. What is usual
    is a share of the policy's entropy: a policy that is certain of most tokens moves less per token.

    Attributes:
        max_step: Largest KL in nats per token between the policies before and after an iteration's steps
            (``policy/old_kl``).
        max_share: Largest such KL per nat of the policy's entropy; ``null`` means none. For some iterations after a
            roll-back it is at most ten times ``usual_share``.
        usual_share: Such a KL per nat of the policy's entropy as it is usual. If a step's KL was found, the roll-back
            lowers ``trainer.learning_rate`` as far as this one asks for, or by its factor in ``changes`` if that is
            smaller.
        max_to_reference: Largest KL in nats per token to the reference policy (``policy/kl_to_reference``).
        patience: Number of iterations in a row that must be above.
    """

    max_step: Positive = 0.1
    max_share: Positive | None = None
    usual_share: Positive = 0.002
    max_to_reference: Positive = 2.0
    patience: Count = 1

    def on_probation(self) -> Self:
        """Return the section with a limit near what is usual."""
        near = NEAR_USUAL * self.usual_share
        return self.model_copy(update={"max_share": near if self.max_share is None else min(self.max_share, near)})


class DeadGroupsConfig(DetectorConfig):
    """Almost no group has both outcomes, so nothing is learned, although not all groups succeed.

    Attributes:
        min_mixed: Share of mixed groups below which groups are dead.
        solved: Share of groups with successes alone from which the task counts as solved; then nothing is found.
        patience: Number of iterations in a row.
    """

    min_mixed: Annotated[float, Field(gt=0, le=1)] = 0.05
    solved: Share = 0.9
    patience: Count = 5


class LengthDriftConfig(DetectorConfig):
    """Responses or episodes have become much longer or shorter than they were, or reach their limit.

    Attributes:
        longer: Multiple of the first iterations' mean length above which rows drift.
        shorter: Share of it below which rows drift; 0 allows any, as where robots learn to be quick.
        limit: Mean length, in tokens or environment steps, at which most rows are cut; ``null`` means none.
        baseline: Number of first iterations whose median is the reference.
        patience: Number of iterations in a row.
    """

    longer: Above1 = 3.0
    shorter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    limit: Positive | None = None
    baseline: Count = 5
    patience: Count = 3


class ResultDropConfig(DetectorConfig):
    """A result has fallen far below its best: that of the held-out evaluation, or the success rate in training.

    Attributes:
        margin: Gap between the 95 % intervals of the best and of the newest evaluation, in widths of the newest, from
            which the fall counts; 0 is the least significant one.
        max_fall: Largest fall of the success rate in training below the best median of ``window`` iterations.
        window: Number of iterations of that median.
        patience: Number of iterations in a row whose success rate must be below.
    """

    margin: Annotated[float, Field(ge=0)] = 0.25
    max_fall: Annotated[float, Field(gt=0, le=1)] = 0.3
    window: Count = 5
    patience: Count = 3

    def on_probation(self) -> Self:
        """Return the section with a margin at which one-sided intervals of 98 % are apart, not two-sided ones."""
        return self.model_copy(update={"margin": -0.25})


class RewardHackingConfig(DetectorConfig):
    """The reward in training rises while the held-out evaluation falls.

    Attributes:
        margin: Gap between the 95 % intervals of the best and of the newest evaluation, in widths of the newest, from
            which the fall counts; 0 is the least significant one.
        window: Number of iterations before each of the two evaluations whose mean training reward is compared.
    """

    margin: Annotated[float, Field(ge=0)] = 0.0
    window: Count = 5


class EnvFaultsConfig(TimedDetectorConfig):
    """Environments and tools fail too often.

    Attributes:
        max_rate: Largest number of restarts, redrawn and quarantined episodes per episode.
        window: Number of iterations that the rate is measured over.
    """

    max_rate: Positive = 0.2
    window: Count = 3


class ThroughputDropConfig(TimedDetectorConfig):
    """Iterations take much longer than before.

    Attributes:
        factor: Multiple of the median time of the window that counts as a drop.
        window: Number of iterations before the newest ones that they are compared with.
        patience: Number of iterations in a row.
    """

    factor: Above1 = 3.0
    window: Annotated[int, Field(ge=3, strict=True)] = 10
    patience: Count = 2


class StalenessConfig(DetectorConfig):
    """Rows lag too many versions behind the policy that trains on them.

    Attributes:
        max_versions: Largest mean lag of an iteration's rows, in versions.
        patience: Number of iterations in a row.
    """

    max_versions: Positive = 4.0
    patience: Count = 2


class OwnDetectorConfig(DetectorConfig):
    """A detector of your own.

    Attributes:
        function: Function ``module:function`` of the history and this section, which returns a finding or ``None``.
            With ``action=roll_back`` the history has no metrics under ``perf/``.
        settings: Numbers for the function, by name.
    """

    function: str
    settings: dict[str, float] = {}

    @field_validator("function")
    @classmethod
    def _check_function(cls, function: str) -> str:
        check_detector(function)  # raises a ValueError
        return function


class RollBackConfig(_Config):
    """How far and how often a run goes back.

    Attributes:
        iterations: Number of newest iterations that are discarded, the one with the finding included. The run then
            keeps as many more checkpoints. It discards fewer if an earlier roll-back left fewer on disk.
        max_times: Number of roll-backs after which a further finding ends the run.
    """

    iterations: Count = 3
    max_times: Count = 3


class HealthConfig(_Config):
    """Detectors of what ruins a run, each with its thresholds and what a finding does.

    Attributes:
        own: Detectors of your own by name, each with ``function``, ``action``, ``changes`` and ``settings``.
        pause_timeout: Seconds that a paused run waits for an answer before it ends; it can be resumed, and asks again.
    """

    nan: NaNConfig = NaNConfig()
    spike: SpikeConfig = SpikeConfig()
    entropy_collapse: EntropyCollapseConfig = EntropyCollapseConfig()
    kl_runaway: KLRunawayConfig = KLRunawayConfig()
    dead_groups: DeadGroupsConfig = DeadGroupsConfig()
    length_drift: LengthDriftConfig = LengthDriftConfig()
    result_drop: ResultDropConfig = ResultDropConfig()
    reward_hacking: RewardHackingConfig = RewardHackingConfig()
    env_faults: EnvFaultsConfig = EnvFaultsConfig()
    throughput_drop: ThroughputDropConfig = ThroughputDropConfig()
    staleness: StalenessConfig = StalenessConfig()
    own: dict[str, OwnDetectorConfig] = {}
    roll_back: RollBackConfig = RollBackConfig()
    pause_timeout: Annotated[float, Field(ge=1, le=MOST_SECONDS)] = 86400.0

    @field_validator("own", mode="before")
    @classmethod
    def _check_names(cls, own: object) -> object:
        for name in own if isinstance(own, dict) else ():
            if name in cls.model_fields or re.fullmatch(NAMES, str(name)) is None:
                raise ValueError(f"{name}: must match {NAMES} and be no other key of health")
        return own

"""Every implementation of the protocols in ``embodyflow.nodes``; mypy checks this file, so their types agree."""

from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.engines import (
    ControlEngine,
    EmbodiedEngine,
    EpisodeEngine,
    InterruptibleEngine,
    LabellingEngine,
    LabelTrainerEngine,
    OffPolicyEngine,
    ResponseJudge,
    TrainerEngine,
)
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.language.language_rollout import LanguageRollout, Question
from embodyflow.rollouts.transition_rollout import TransitionRollout
from embodyflow.training.agents_trainer import AgentsTrainer
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.imitation.dagger_trainer import DaggerTrainer
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.training.off_policy.crossq import CrossQ
from embodyflow.training.off_policy.episode_trainer import EpisodeOffPolicyTrainer
from embodyflow.training.off_policy.implicit_q import ImplicitQLearning
from embodyflow.training.off_policy.learner import OffPolicyLearner
from embodyflow.training.off_policy.soft_actor_critic import MaximumEntropyLearner, SoftActorCritic
from embodyflow.training.off_policy.steering_trainer import SteeringTrainer
from embodyflow.training.off_policy.trainer import OffPolicyTrainer
from embodyflow.training.off_policy.twin_delayed import TwinDelayed
from embodyflow.workers.calls import NodeCall

CONTEXTS: tuple[type[NodeContext], ...] = (NodeCall,)
CONTROL_ENGINES: tuple[type[ControlEngine], ...] = (ControlRollout, TransitionRollout)
EMBODIED_ENGINES: tuple[type[EmbodiedEngine], ...] = (EmbodiedRollout,)
LANGUAGE_ENGINES: tuple[type[EpisodeEngine[Question]], ...] = (LanguageRollout,)
JUDGES: tuple[type[ResponseJudge], ...] = (LanguageRollout,)
INTERRUPTIBLE: tuple[type[InterruptibleEngine], ...] = (LanguageRollout,)
TRAINER_ENGINES: tuple[type[TrainerEngine], ...] = (FSDPTrainer, LanguageTrainer, AgentsTrainer)
OFF_POLICY_ENGINES: tuple[type[OffPolicyEngine], ...] = (OffPolicyTrainer, EpisodeOffPolicyTrainer, SteeringTrainer)
LABELLING_ENGINES: tuple[type[LabellingEngine], ...] = (EmbodiedRollout,)
LABEL_TRAINERS: tuple[type[LabelTrainerEngine], ...] = (DaggerTrainer,)
LEARNERS: tuple[type[OffPolicyLearner], ...] = (
    MaximumEntropyLearner,
    SoftActorCritic,
    TwinDelayed,
    CrossQ,
    ImplicitQLearning,
)

"""The records that travel between nodes.

A **Batch** is a ``tensordict.TensorDict`` of rows (``batch_size=[num_rows]``). A row is one episode (embodied) or
one response (language). Every row carries::

    uid             int64 [N]   unique in the run
    group_id        int64 [N]   siblings that share one prompt or initial state
    policy_version  int64 [N]   version of the weights that acted
    seed            int64 [N]   seed of the row's draws

An embodied row adds, with T decisions (policy calls) of C actions (the chunk) of A dimensions, L = C·A tokens (of
SmolVLA and π0, which denoise H ≥ C actions in K steps, L = C·K)::

    state            float32 [N, T, S]      observation before each decision
    image            uint8   [N, T, H, W, 3]  likewise, under its own name, of every camera that is shown
    final_state      float32 [N, S]         observation after the last action
    final_image      uint8   [N, H, W, 3]   likewise
    instruction_ids  int64   [N, I]         the instruction, tokenised; 0 is padding
    action_tokens    int64   [N, T, L]      sampled bins, ordered (chunk step, dimension), of actions not executed
                                            too; of SmolVLA and π0 the ways from noise to action,
                                            float32 [N, T, H·(K + 1)·Amax]
    actions          float32 [N, T, C, A]   what was executed; zero after the end
    log_probs        float32 [N, T, L]      of those tokens, when sampled; of SmolVLA and π0 of each action's steps
    loss_mask        bool    [N, T, L]      tokens whose action was executed
    env_task_id      int64   [N]            which instruction of the experiment
    goal             int64   [N]            index of the initial state in its split
    num_steps        int64   [N]            executed environment steps
    episode_return   float32 [N]            sum of the environment's own rewards
    success, terminated, truncated   bool [N]

A row of a control task is a piece of an episode, of T steps at most: ``state``, ``log_probs`` and ``loss_mask`` as
above with C = L = 1, and::

    action_tokens    float32 [N, T, A]      the Gaussian's sample, before it is clipped to the environment's bounds
    rewards          float32 [N, T, 1]      the environment's own
    final_state      float32 [N, S]         observation after the last step
    num_steps        int64   [N]            steps of the piece
    terminated       bool    [N]            whether the episode terminated there; else a time limit or the
                                            iteration cut it, and ``bootstrap_values`` (float32 [N]) is
                                            what was to come

A language row is an episode of R decisions of one token, R the longest response of the rows at hand (T = R, L = 1);
``log_probs`` and ``loss_mask`` as above, and::

    prompt_tokens    int64   [N, P]         the prompt; what lies after its end is zero
    prompt_length    int64   [N]            tokens of the prompt
    action_tokens    int64   [N, R, 1]      the response, the token that ended it included
    response_length  int64   [N]            tokens of the response
    num_steps        int64   [N]            the same
    prompt_id        int64   [N]            index of the prompt in its split
    terminated, truncated  bool [N]         whether the response ended by itself, or at the limit
    success          bool    [N]            what the reward function says, with ``scores`` (float32 [N]), the reward

Between ranks such rows travel without their padding (:mod:`embodyflow.data.padding`). That concerns the columns named
here and below with R, or with T, in their shape, and columns of your own whose names begin with ``token_``, such as
``token_entropy``; any other column of your own is so many values of the row, and stays whole.

To all rows the nodes add ``rewards``, ``advantages``, ``old_log_probs``, ``ref_log_probs`` (float32 [N, T, L]; so is
``kl_penalty``, what rewards lose for the KL where it is taken from them) and, one per decision, ``values`` (the
critic's estimate before it) and ``returns`` (float32 [N, T]). To an advantage estimator a decision is one step, its
reward the sum over its chunk.

Episodes end at different decisions; what lies after the end is zero and outside ``loss_mask``.

Worked example: ``max_steps=80``, chunk of 5, 4 dimensions: T=16, L=20. An episode that succeeds at step 12 has
``num_steps=12`` and ``loss_mask`` true for all 20 tokens of decisions 0 and 1 and the first 2·4=8 of decision 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensordict import TensorDict

Batch: TypeAlias = TensorDict


@dataclass
class NodeOutput:
    """What a node function returns.

    Attributes:
        batch: the rows the node passes on to its children.
        metrics: name to number or :class:`embodyflow.data.metrics.Metric`; a bare number is a mean over ranks.
        info: small JSON-able facts for people, shown with the node's Prefect task run.
    """

    batch: Batch | None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

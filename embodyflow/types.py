"""The records that travel between nodes.

A **Batch** is a ``tensordict.TensorDict`` of rows (``batch_size=[num_rows]``). A row is one episode (embodied), one
response (language) or a piece of an episode (control). Every row has::

    uid             int64 [N]   unique in the run
    group_id        int64 [N]   shared by the siblings of one prompt or initial state
    policy_version  int64 [N]   version of the weights that acted
    seed            int64 [N]   seed of the row's draws

An embodied row adds columns with T decisions (policy calls), each a chunk of C actions with A dimensions, and
L = C·A tokens. SmolVLA and π0, which denoise H ≥ C actions in K steps, have L = C·K. The policy ``diffusion``, which
denoises C actions and trains the last K' of K steps, has L = C·K'. ::

    state            float32 [N, T, S]      observation before each decision
    image            uint8   [N, T, H, W, 3]  the same, one column per camera under the camera's name
    member           int64   [N, T, 1]      with ``env.members`` the index of the episode's member
    final_state      float32 [N, S]         observation after the last action
    final_image      uint8   [N, H, W, 3]   the same
    instruction_ids  int64   [N, I]         tokens of the instruction; 0 is padding
    action_tokens    int64   [N, T, L]      sampled bins in the order (chunk step, dimension), including those of
                                            actions not executed; of SmolVLA and π0 the paths from noise to
                                            action, float32 [N, T, H·(K + 1)·Amax], and of ``diffusion`` the same,
                                            float32 [N, T, C·(K + 1)·A]
    actions          float32 [N, T, C, A]   executed actions; zero after the end
    log_probs        float32 [N, T, L]      log-probs of the tokens when sampled; of policies that denoise those of
                                            each denoising step of each action, of ``diffusion`` of each trained one
    loss_mask        bool    [N, T, L]      tokens whose action was executed; false for dimensions that pad a member's
                                            actions
    env_task_id      int64   [N]            index of the instruction in ``env.tasks``
    goal             int64   [N]            index of the initial state in its split
    num_steps        int64   [N]            executed environment steps
    episode_return   float32 [N]            sum of the environment's own rewards
    success, terminated, truncated   bool [N]

A control row is a piece of an episode, at most T steps long. ``state``, ``log_probs`` and ``loss_mask`` are as above
with C = L = 1, and::

    action_tokens    float32 [N, T, A]      sample of the Gaussian, before it is clipped to the environment's bounds;
                                            of a categorical policy the index of the action, int64 [N, T, 1]
    rewards          float32 [N, T, 1]      the environment's own rewards
    final_state      float32 [N, S]         observation after the last step
    num_steps        int64   [N]            steps of the piece
    terminated       bool    [N]            whether the episode terminated at the end of the piece; otherwise a time
                                            limit or the iteration cut it, and ``bootstrap_values`` (float32 [N])
                                            is the estimated return after it
    running_returns  float32 [N, T]         only of policies that scale rewards: discounted sum of the episode's
                                            rewards from its start to this step, which earlier pieces may hold

A row of off-policy training is one step: ``state`` and ``final_state`` (float32 [N, S]) are the observations before
and after it, ``action_tokens`` (float32 [N, A]) is the action in [-1, 1], and ``rewards`` is float32 [N].
``terminated`` and ``truncated`` say how it ended its episode, if it did. The uids have the order of steps and, within a
step, of environments.

A row of DAgger is an episode of up to T = ``env.max_steps`` steps. Observations are those before each step, ids and
outcome are as above, and::

    expert_actions   float32 [N, T, A]      the expert's action in the state before the step
    labelled         bool    [N, T]         steps whose expert action is a label
    by_expert        bool    [N, T]         steps that the expert executed

A language row is an episode of R decisions of one token, where R is the longest response at hand (T = R, L = 1).
``log_probs`` and ``loss_mask`` are as above, and::

    prompt_tokens    int64   [N, P]         prompt; zero after its end
    prompt_length    int64   [N]            number of tokens in the prompt
    action_tokens    int64   [N, R, 1]      response, including the token that ended it
    response_length  int64   [N]            number of tokens in the response
    num_steps        int64   [N]            the same
    prompt_id        int64   [N]            index of the prompt in its split
    terminated, truncated  bool [N]         whether the response ended by itself or at the limit
    success          bool    [N]            verdict of the reward function, with ``scores`` (float32 [N]), the reward

With ``rollout.interrupt`` a row adds ::

    token_version    int32   [N, R, 1]      version of the weights that sampled the token; 0 is also padding

``policy_version`` is then that of the first token, the oldest. In an embodied row the column is int32 [N, T, 1], the
version that decided; 0 after the last decision. In an agent's row the column is 0 for tokens that the model did not
write.

Worked example: with ``rollout.max_staleness=2`` and ``rollout.interrupt.every=4`` iteration 9 begins with version
9 − 1 − 2 = 6. A response of 11 tokens has ``token_version`` 6, 6, 6, 6, 7, 7, 7, 7, 8, 8, 8 and ``policy_version`` 6.
The last three are by the trainer's own version 8, so their log-probs are compared with the trainer's. The tokens are
2, 1 and 0 versions stale, 12 / 11 in the mean, and the spread within the row is 2.

An agent's row is a language row whose response holds everything after the prompt, in the order in which it came: the
model's turns, and the messages that tools, users and the chat template put between them. Only the model's tokens are in
``loss_mask``. The tokens belong to one or several contexts. A context is what the model saw when it wrote: positions
begin at 0 in each, and no token attends to another context. Context 0 continues the prompt. Each further one begins
with given tokens of its own. The last token of each context is the model's. The row adds::

    token_origin     int8    [N, R, 1]      who wrote the token: 0 template, 1 model, 2 tool, 3 user; 0 is also padding
    token_context    int32   [N, R, 1]      context of the token; 0 is also padding
    token_turn       int32   [N, R, 1]      number of the model's turn, from 1; 0 for tokens of others and padding
    token_turn_reward  float32 [N, R, 1]    reward of the turn at its last token, zero elsewhere
    token_agent      int32   [N, R, 1]      agent that wrote the token, from 1 in the order of ``rollout.agent.agents``;
                                            0 for an agent without a name, tokens of others and padding
    token_agent_reward  float32 [N, R, 1]   outcome of the agent at the last token that it wrote, zero elsewhere
    num_turns        int64   [N]            turns of the model
    tool_calls       int64   [N]            calls that the model asked for
    tool_mistakes    int64   [N]            those of them that were the model's mistake
    rewarded         bool    [N]            whether the workflow itself gave the reward, ``own_reward`` (float32 [N]),
                                            and the verdict, ``own_success`` (bool [N])
    agents_rewarded  bool    [N]            whether the workflow gave each agent an outcome of its own

Worked example: the model calls a calculator with 8 tokens and the token that ends its turn, reads an answer of 4 tokens
with the 3 that the template puts around it, and answers with 5 tokens and the end. R = 9 + 7 + 6 = 22. ``loss_mask`` is
true for the first 9 and the last 6, where ``token_turn`` is 1 and 2, and ``token_context`` is 0.

Worked example with two contexts: after a prompt of 10 tokens the model thinks and answers with 12 tokens. The user asks
again, and the chat template removes the thought from the first turn. The chat is now 20 tokens, which do not begin with
the 22 that the model has seen. They begin context 1, and the model answers with 6 tokens. R = 12 + 20 + 6 = 38:
``token_context`` is 0 for the first 12 and 1 for the other 26; ``loss_mask`` is true for the first 12 and the last 6.
The trainer computes two sequences, of 10 + 12 and of 26 tokens.

Worked example with two agents: the first writes 2 tokens after its prompt. The second reads a prompt of 5 tokens,
writes 2, and wins a chip. R = 2 + 5 + 2 = 9: ``token_agent`` is 1, 1, then 0 five times, then 2, 2.
``token_agent_reward`` is −1 at token 2, 1 at token 9 and zero elsewhere.

Rows travel between ranks without their padding (:mod:`embodyflow.data.padding`). That applies to the columns above and
below with R or T in their shape, and to your own columns with names that begin with ``token_``, such as
``token_entropy``. Any other column of your own is a value of the row and travels as it is.

Nodes add ``rewards``, ``advantages``, ``old_log_probs`` and ``ref_log_probs`` (float32 [N, T, L]), and with
``algorithm.kl.placement=reward`` also ``kl_penalty``, with ``algorithm.top_entropy_fraction`` below 1 ``old_entropy``.
They add one entry per decision of ``values``, the critic's estimates, and of ``returns`` (float32 [N, T]), or with
``critic.level=action`` one per action of its chunk (float32 [N, T, C]), and for ``algorithm.advantage=remax`` one
``baseline`` per row, the reward of its group's greedy row (float32 [N]). ``algorithm.advantage=rae`` adds
``token_baseline`` (float32 [N, R, 1]), the running average of what the agent that wrote the token earned before. To an
advantage estimator a decision is one step, and its reward is the sum over its chunk; what has a value of its own is a
step of its own.

With ``env.members`` S and A are the largest of all members; smaller states and actions end in zeros.

Episodes end at different decisions. Everything after the end is zero and outside ``loss_mask``.

Worked example: ``max_steps=80``, chunks of 5, 4 dimensions: T=16, L=20. An episode that succeeds at step 12 has
``num_steps=12``, and ``loss_mask`` is true for all 20 tokens of decisions 0 and 1 and the first 2·4=8 of decision 2.

``max_steps`` need not be a multiple of C: T = ⌈max_steps / C⌉, and the time limit cuts the last chunk as success does.
With ``max_steps=12`` the episode above has the same mask, and T=3. Policies that denoise do so for all actions of a
chunk together, each conditioned on all actions of the step before. The log-prob of a denoising step is a sum over
actions, because their noise is independent, and the mask keeps the terms of executed actions. Rollout and trainer
compute these terms from the whole recorded path, so ``action_tokens`` also holds actions that were not executed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensordict import TensorDict

Batch: TypeAlias = TensorDict


@dataclass
class NodeOutput:
    """Output of a node function.

    Attributes:
        batch: Rows that the node passes on to its children; ``None`` passes none on.
        metrics: Numbers or :class:`embodyflow.data.metrics.Metric` by name; a bare number is averaged over ranks.
        info: Small JSON-able facts, shown with the node's Prefect task run.
    """

    batch: Batch | None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

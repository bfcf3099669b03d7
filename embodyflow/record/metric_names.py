"""Every metric that a run writes to ``metrics.jsonl``, with its meaning.

A name is ``area/name``. A part in angle brackets stands for many: ``perf/<node>_seconds`` exists for each node of the
graph. Metrics of a user's own functions are not listed here.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache

METRICS = {
    "rollout/success_rate": "Share of the iteration's episodes or responses that succeeded.",
    "rollout/reward": "Mean reward of a response, or mean return of an episode by the environment's own rewards.",
    "rollout/episode_steps": "Mean number of environment steps, or of response tokens.",
    "rollout/turns": "Mean number of an agent's turns in an episode.",
    "rollout/contexts": "Mean number of an agent's contexts in an episode; above 1 where a chat template or a workflow "
    "changes what the model has read.",
    "rollout/turn_reward": "Mean sum of the rewards that an agent's workflow gives to single turns of an episode.",
    "rollout/reward_<agent>": "Mean outcome of one of `rollout.agent.agents` in an episode.",
    "rollout/success_turn_<k>": "Share of an agent's episodes that succeeded with at most k turns, for k up to 8.",
    "rollout/tool_calls": "Mean number of an agent's tool calls in an episode.",
    "rollout/tool_mistakes": "Number of tool calls that were the model's mistake.",
    "rollout/num_episodes": "Number of episodes or responses gathered; in control jobs, episodes that ended.",
    "rollout/num_steps": "Number of environment steps, or of response tokens.",
    "groups/mixed_fraction": "Share of groups with both outcomes. Only these carry a group-relative advantage.",
    "groups/all_success_fraction": "Share of groups whose members all succeeded.",
    "groups/all_failure_fraction": "Share of groups whose members all failed.",
    "groups/num_dropped": "Number of groups that `filter` dropped.",
    "groups/num_kept_rows": "Number of rows left to train on.",
    "groups/num_rerolled": "Number of further groups that dynamic sampling played.",
    "surplus/num_used": "Rows left over by earlier iterations that this one trains on.",
    "surplus/num_expired": "Rows left over that became staler than `filter.max_staleness` and were dropped.",
    "surplus/num_waiting": "Rows that this iteration leaves for later ones.",
    "stream/staleness": "Mean number of versions that the groups of an iteration lag behind, in streaming.",
    "stream/num_dropped": "Groups that became too old since the iteration before and were drawn again, in streaming.",
    "reward/score": "Mean of what `compute_reward` places on a row's last token.",
    "reward/kl_penalty": "Mean per token that rewards lose for the KL, with `algorithm.kl.placement=reward`.",
    "reward/<part>": "Mean of one part of a reward, as the reward function names it.",
    "scores/pass@<k>": "Unbiased estimate that one of k responses to a prompt is correct.",
    "scores/reward": "Mean reward over prompts.",
    "scores/num_prompts": "Number of prompts answered.",
    "scores/num_samples": "Number of responses.",
    "scores/<source>/<score>": "The same score for the prompts of one data source.",
    "progress/failure_score": "Mean progress reward of failed episodes (SRPO).",
    "progress/num_centres": "Number of clusters of successes that failures are compared with (SRPO).",
    "progress/num_unreached_tasks": "Number of tasks without any success to compare with (SRPO).",
    "classifier/loss": "Logistic loss of the success classifier after its training, mean over its episodes.",
    "classifier/labelled_share": "Share of the iteration's episodes whose success is revealed to the classifier.",
    "classifier/num_examples": "Number of episodes that the success classifier is trained on, demonstrations included.",
    "classifier/one_outcome": "1 if every label so far is a success, or every one a failure: all episodes then get the "
    "reward of that outcome.",
    "classifier/accuracy": "Share of the iteration's episodes without a label that the classifier tells rightly, at "
    "probability 1/2.",
    "classifier/auroc": "Area under the ROC curve of the classifier on the same episodes: how often a success has a "
    "higher probability than a failure. Absent if all of them have one outcome.",
    "advantage/abs_mean": "Mean absolute advantage of a token.",
    "advantage/baseline_<agent>": "Running baseline of one of `rollout.agent.agents` after the iteration, with "
    "`algorithm=rae`.",
    "parity/log_prob_gap": "Largest difference between a rollout's log-probs and the trainer's.",
    "policy/pg_loss": "Policy loss, mean over tokens, without KL and entropy terms.",
    "policy/entropy": "Entropy of the policy, mean over tokens.",
    "policy/old_kl": "Estimate (k1) of how far the policy moved from the one that the ratio is taken to.",
    "policy/clip_fraction": "Share of tokens whose ratio or log-prob was clipped.",
    "policy/dual_clip_fraction": "Share of tokens bounded by the dual clip, `algorithm.clip_ratio_c`.",
    "policy/high_entropy_fraction": "Share of tokens that `algorithm.top_entropy_fraction` selects.",
    "policy/selected_fraction": "Share of tokens that `clip_cov` or `kl_cov` treats apart.",
    "policy/reference_kl": "KL to the reference policy in the loss, by `algorithm.kl.estimator`.",
    "policy/kl_to_reference": "KL (k3) to the reference policy before the iteration's first step.",
    "policy/kl_coef": "Present coefficient of the KL term, if it adapts or moves to `algorithm.kl.final_coef`.",
    "policy/behavior_kl": "KL (k3) between the policy that acted and the trainer's, with `old_log_probs=proximal`.",
    "policy/behavior_weight": "Mean weight π_prox / π_behavior of a token, with `old_log_probs=proximal` or "
    "`interpolated`.",
    "policy/behavior_bounded_fraction": "Share of tokens whose weight reached `algorithm.max_behavior_weight`.",
    "policy/num_stale_rows": "Number of rows that an earlier version of the policy made.",
    "policy/staleness_mean": "Mean over tokens of how many versions older the policy was that sampled them, with "
    "`rollout.interrupt`.",
    "policy/staleness_max": "The same for the stalest token.",
    "policy/staleness_spread": "Mean over rows of the difference between the newest and the oldest version in a row.",
    "policy/<name>/<agent>": "The same for one of `rollout.agent.agents`, with `rollout.agent.weights=own`.",
    "policy/weights_digest/<agent>": "Number that changes whenever the agent's weights change, with "
    "`rollout.agent.weights=own`; comparable within a run.",
    "policy/loss": "Loss of the policy in off-policy training, mean over updates.",
    "policy/advantage_weight": "Mean weight of an action in the policy's likelihood (IQL), mean over updates.",
    "policy/temperature": "Coefficient of the entropy in off-policy training (SAC), mean over updates.",
    "replay/num_transitions": "Transitions that off-policy training draws from.",
    "dagger/num_labels": "Steps that the expert labelled in the iteration (DAgger).",
    "dagger/expert_share": "Share of the iteration's steps that the expert executed (DAgger).",
    "dagger/num_samples": "Labelled steps of all iterations and of the demonstrations (DAgger).",
    "dagger/loss": "Imitation loss on them, mean over the last 50 steps (DAgger).",
    "train/optimizer_steps": "Number of optimizer steps of the policy.",
    "train/grad_norm": "Mean norm of the policy's gradient before clipping.",
    "train/<name>/<agent>": "The same for one of `rollout.agent.agents`, with `rollout.agent.weights=own`. Without the "
    "agent's name, steps are the sum and norms the mean over the agents that train.",
    "train/learning_rate": "Learning rate of the policy.",
    "critic/value": "Mean value that the critic predicts.",
    "critic/explained_variance": "Share of the returns' variance that the critic explains.",
    "critic/loss": "Loss of the critic, mean over decisions.",
    "critic/state_loss": "Loss of the critic of states (IQL), mean over updates.",
    "critic/clip_fraction": "Share of decisions whose value was clipped.",
    "critic/optimizer_steps": "Number of optimizer steps of the critic.",
    "critic/grad_norm": "Mean norm of the critic's gradient before clipping.",
    "sft/loss": "Imitation loss of the warm start, mean over its last 50 steps.",
    "sft/num_demos": "Number of demonstrations.",
    "sft/demo_steps": "Mean number of environment steps of a demonstration.",
    "sft/num_samples": "Number of samples that the demonstrations give.",
    "sft/steps": "Number of optimizer steps of the warm start.",
    "sft/success_rate": "Sampled success of the warm start on held-out goals or prompts (`warm_start.until`).",
    "sft/reached": "1 if the warm start reached `warm_start.until.success`, 0 if it ended at `max_steps`.",
    "eval/<mode>_success_rate": "Success rate on goals or prompts never trained on; mode is `greedy` or `sampled`.",
    "eval/<mode>_success_rate/<task>": "The same for one task, where there are several.",
    "eval/<mode>_success_low": "Lower end of the 95 % Wilson interval of that rate.",
    "eval/<mode>_success_high": "Upper end of the 95 % Wilson interval of that rate.",
    "eval/<mode>_episode_steps": "Mean number of environment steps, or of response tokens, in evaluation.",
    "eval/<mode>_<score>": "A score of language jobs in evaluation, such as `eval/sampled_pass@4`.",
    "eval/<mode>_<source>/<score>": "The same score for the prompts of one data source.",
    "eval/return": "Mean return of deterministic episodes of a control job.",
    "eval/return_low": "Lower end of the 95 % Student interval of that mean.",
    "eval/return_high": "Upper end of the 95 % Student interval of that mean.",
    "eval/return_std": "Standard deviation of the returns.",
    "eval/solved_at_reset": "Number of goals that were reached before the policy acted; they lift the success rate.",
    "health/<detector>": "The value that a detector of `health` found in this iteration and not in the one before.",
    "env/unrestorable_tasks": "Tasks whose seed does not restore an episode, with `env.allow_unrestorable=true`.",
    "eval/num_goals": "Number of goals or prompts that were evaluated.",
    "eval/success_rate": "Success rate of one task in `python -m flows.evaluate`.",
    "eval/episode_steps": "Mean number of environment steps of one task in `python -m flows.evaluate`.",
    "balance/token_imbalance": "How much more tokens than the mean the busiest rank has, as a share of the mean.",
    "perf/iteration_seconds": "Wall time of the iteration, without what it shared with the one before.",
    "perf/wait_for_rollout_seconds": "How long the trainer waited for rows.",
    "perf/rollout_workers": "Number of rollout workers of the iteration.",
    "perf/slowest_group_seconds": "Time of the slowest group of an iteration, in streaming.",
    "perf/<node>_seconds": "Time of the slowest rank in one node of the graph.",
    "perf/<node>_cpu_seconds": "CPU time of all ranks in one node, without their environment processes.",
    "perf/<node>_queued_seconds": "How much sooner the last rank in one node would end if none waited for a core; 0 "
    "where the kernel does not tell.",
    "perf/flow_cpu_seconds": "CPU time of the flow's process in `perf/iteration_seconds`.",
    "perf/flow_queued_seconds": "How long the flow was ready to run and had no core, in `perf/iteration_seconds`.",
    "perf/critical_path_seconds": "Time of the chain of nodes that takes longest, by the slowest rank of each.",
    "perf/commit_seconds": "How long the commit held up the run: publish weights, write the checkpoint, free rows.",
    "perf/<group>_idle_share": "Share of `perf/iteration_seconds` in which ranks of a group had no node, as a mean.",
    "perf/<group>_peak_memory_bytes": "Largest resident memory of a rank's process so far, without its environment "
    "processes.",
    "perf/<group>_peak_device_memory_bytes": "Most device memory that tensors of a rank's process have held so far, on "
    "GPUs.",
    "perf/bytes_read": "Bytes of rows and weights that workers read from buffers.",
    "perf/bytes_written": "Bytes of rows and weights that workers wrote to buffers.",
    "perf/<model>_micro_batches": "Forward and backward passes of a model's training on one rank, over all its "
    "optimizer steps; model is `train` or `critic`.",
    "perf/<model>_compile_seconds": "How long this iteration compiled the steps of a model, or loaded them from the "
    "cache, with `trainer.compile=true`.",
    "perf/evaluate_<mode>_seconds": "Time of an evaluation, mean over ranks.",
    "perf/evaluation_seconds": "Time of an evaluation beside training, from its beginning to its end.",
    "perf/wait_for_evaluation_seconds": "How long training waited for the end of an evaluation beside it.",
    "perf/env_steps_per_second": "Environment steps per second, summed over rollout workers.",
    "perf/tool_retries": "Attempts of tool calls, of steps in a text environment, or of programs that failed and were "
    "repeated.",
    "rollout/verifiers/<name>": "Mean of a weighted reward or a metric of the environment of verifiers.",
    "eval/verifiers/<name>": "The same in evaluations.",
    "perf/rejected_episodes": "Episodes that the workflow rejected.",
    "perf/redrawn_episodes": "Episodes that were drawn again, because a tool or an environment failed in all attempts.",
    "perf/tokens_read": "Tokens of prompts, messages and tool answers that went through the model, without those whose "
    "keys and values it had; 0 with an engine that does not count them.",
    "perf/health/<detector>": "The same of a detector that reads times and faults, or of your own.",
    "perf/env_restarts": "Environment processes that were restarted.",
    "perf/env_timeouts": "Those of them that hung.",
    "perf/env_memory_restarts": "Environment processes that were restarted because they exceeded `env.max_memory_gb`.",
    "perf/env_quarantined": "Episodes given up after three failures of their environment.",
    "perf/buffer/num_shards": "Shards in the buffers now.",
    "perf/buffer/memory_bytes": "Bytes of shards in shared memory now.",
    "perf/buffer/spare_bytes": "Bytes of segments kept for the next writer.",
    "perf/buffer/peak_memory_share": "Largest share of its memory that a buffer has used so far.",
    "perf/buffer/spilled_bytes": "Bytes of shards on disk now.",
    "perf/buffer/num_spills": "Shards moved to disk so far.",
    "perf/buffer/bytes_sent": "Bytes sent to other Ray nodes so far.",
}
"""Meaning of each metric by its name. Names under ``perf/`` depend on timing and differ from run to run."""

MEASURES = ("eval/greedy_success_rate", "eval/return", "rollout/success_rate", "rollout/reward")
"""Metrics to compare runs by; the first that every run has counts."""


def common_measure(runs: Sequence[Sequence[Mapping[str, object]]]) -> str | None:
    """Return the first of :data:`MEASURES` that every run has, by the lines of its metrics; ``None`` without one."""
    has = [[name for name in MEASURES if any(line.get(name) is not None for line in lines)] for lines in runs]
    return next((name for name in MEASURES if has and all(name in each for each in has)), None)


RECORD_KEYS = {
    "iteration": "Index of the iteration, from 1; 0 is before the first.",
    "weights_digest": "SHA-256 of the policy's full weights.",
    "digests": "SHA-256 of each node's rows, by node and rank.",
    "solved_at_reset": "Names of the goals that were reached before the policy acted, if there are any.",
}
"""Keys of a line of ``metrics.jsonl`` that are not metrics."""


def documented(name: str) -> bool:
    """Return True if a name is in the table, either itself or by a placeholder."""
    return name in METRICS or any(pattern.fullmatch(name) for pattern in _patterns())


@cache
def _patterns() -> list[re.Pattern[str]]:
    names = (name for name in METRICS if "<" in name)
    return [re.compile(re.sub(r"<\w+>", "[^ ]+", re.escape(name))) for name in names]
